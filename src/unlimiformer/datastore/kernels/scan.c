/* The scan of the exact store: dot products of every stored row with every query. Only the K best of each query are kept,
 * so that no array of all scores (queries x rows) exists.
 *
 * Rows are float32, bfloat16 or int8 with one scale per row. Queries and scores are float32, except that int8 rows are
 * scanned with int16 queries, which doubles the number of products per instruction and gives the same scores on every
 * processor. The rows are divided into parts that OpenMP, if it is available, runs in parallel.
 */
#include "upper.h"

#define TOGETHER (LANES == 16 ? 4 : 2) /* queries whose sums fit into the registers */
#define AHEAD 16                       /* rows between the one that is scored and the one that is fetched from memory */
#define SAMPLE 32                      /* one of so many rows decides the first floors */

/* ---- dot products ---- */

/* Converts a float32 or bfloat16 row to float32. */
static void expand(const char *source, int64_t kind, int64_t width, float *out) {
    if (kind == FLOAT32) {
        memcpy(out, source, (size_t)width * sizeof(float));
    } else {
        const uint16_t *half = (const uint16_t *)source;
        uint32_t *bits = (uint32_t *)out;
        for (int64_t i = 0; i < width; i++) bits[i] = (uint32_t)half[i] << 16;
    }
}

static inline float total(vec v) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* Products of rows (BLOCK, padded) with queries (QUERIES, padded), both float32: out (QUERIES, BLOCK). The sums of four
 * rows with a few queries stay in registers. */
static inline void dots_float(const float *rows, const float *queries, int64_t padded, float *out) {
    for (int a = 0; a < BLOCK; a += 4)
        for (int b = 0; b < QUERIES; b += TOGETHER) {
            vec sums[TOGETHER][4];
            memset(sums, 0, sizeof sums);
            for (int64_t i = 0; i < padded; i += LANES) {
                vec q[TOGETHER];
                for (int j = 0; j < TOGETHER; j++) {
                    q[j] = *(const vec *)(queries + (b + j) * padded + i);
                    IN_REGISTER(q[j]);
                }
                for (int t = 0; t < 4; t++) {
                    vec x = *(const vec *)(rows + (a + t) * padded + i);
                    IN_REGISTER(x);
                    for (int j = 0; j < TOGETHER; j++) sums[j][t] += x * q[j];
                }
            }
            for (int j = 0; j < TOGETHER; j++)
                for (int t = 0; t < 4; t++) out[(b + j) * BLOCK + a + t] = total(sums[j][t]);
        }
}

/* ---- scan ---- */

/* Scores BLOCK int8 rows: all queries for a few rows before the next ones, which reads memory in one even stream. */
static void score_int8(const int8_t *const *rows, const PreparedQueries *queries, int64_t width, Ahead ahead,
                       float *dots) {
    int64_t padded = queries->padded_width;
    for (int64_t a = 0; a < BLOCK; a += ROWS)
        for (int64_t q = 0; q < queries->padded_count; q += QUERIES) {
            fetch(&ahead);
            dots_int8(rows + a, (const int16_t *)queries->data + q * padded, width, padded, dots + q * BLOCK + a);
        }
}

/* Fills the list of each query with the `k` best of every `step`th row of [start, stop), and possibly a few more.
 * scratch: BLOCK expanded rows (BLOCK, padded_width), then scores (padded_count, BLOCK). */
static void scan_part(const States *states, const PreparedQueries *queries, int64_t start, int64_t stop, int64_t step,
                      int64_t k, float *scratch, BestList *lists) {
    int64_t width = states->width, padded = queries->padded_width, stride = row_bytes(states);
    float *dots = scratch + BLOCK * padded;
    int64_t calls = BLOCK / ROWS * queries->padded_count / QUERIES, share = (BLOCK * stride / calls + 63) / 64 * 64;
    for (int64_t base = start; base < stop; base += BLOCK * step) {
        int64_t count = (stop - base + step - 1) / step;
        if (count > BLOCK) count = BLOCK;
        float scale[BLOCK] = {0};
        const int8_t *rows[BLOCK];
        for (int64_t a = 0; a < BLOCK; a++) {
            int64_t row = base + (a < count ? a : 0) * step;
            rows[a] = (const int8_t *)states->data + row * stride;
            scale[a] = states->scales ? states->scales[row] : 1.0f;
        }
        Ahead ahead = {(const char *)rows[0] + AHEAD * stride, step > 1 ? 0 : share};
        if (states->kind == INT8) {
#if HAS_UPPER
            if (scan_upper(rows, scale, queries, base, count, width, k, ahead, dots, lists)) continue;
#endif
            score_int8(rows, queries, width, ahead, dots);
        } else {
            for (int64_t a = 0; a < BLOCK; a++)
                expand((const char *)rows[a], states->kind, width, scratch + a * padded);
            for (int64_t q = 0; q < queries->padded_count; q += QUERIES)
                dots_float(scratch, (const float *)queries->data + q * padded, padded, dots + q * BLOCK);
        }
        for (int64_t q = 0; q < queries->count; q++) {
            float *scores = dots + q * BLOCK;
            for (int t = 0; t < BLOCK; t++) scores[t] = scores[t] * (scale[t] * queries->scales[q]);
            offer(&lists[q], scores, base, count, k);
        }
    }
}

/* ---- the search ---- */

typedef struct {
    const States *states;
    PreparedQueries queries;
    int64_t parts, k;
    BestList *lists; /* (parts, count) */
    float *scratch;  /* (parts, room) */
    int64_t room;
} Search;

/* Empties the lists of query `q` and gives them a floor. */
static void restart(const Search *search, int64_t q, float floor) {
    for (int64_t p = 0; p < search->parts; p++) {
        BestList *list = &search->lists[p * search->queries.count + q];
        list->count = 0;
        list->floor = floor;
    }
}

/* Fills the lists of all parts with the `k` best of every `step`th row. */
static void scan_rows(const Search *search, int64_t step, int64_t k) {
    int64_t parts = search->parts, samples = search->states->rows / step;
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int64_t p = 0; p < parts; p++)
        scan_part(search->states, &search->queries, samples * p / parts * step, samples * (p + 1) / parts * step, step, k,
                  search->scratch + p * search->room, search->lists + p * search->queries.count);
}

/* Guesses the floor of each query from a sample of the rows, so low that k rows nearly always exceed it. Without a floor,
 * a list takes in several times as many rows: all those that are among the best so far. */
static void guess_floors(const Search *search) {
    int64_t count = search->queries.count;
    float expected = (float)search->k / SAMPLE;
    int64_t rank = (int64_t)(expected + 4 * sqrtf(expected)) + 4;
    if (search->states->rows < SAMPLE * 256 || rank > search->k) return;
    scan_rows(search, SAMPLE, rank);
    for (int64_t q = 0; q < count; q++) {
        BestList *list = search->lists + q;
        merge_parts(list, search->parts, count, rank);
        float least = INFINITY;
        for (int64_t i = 0; i < list->count; i++) least = fminf(least, list->score[i]);
        restart(search, q, list->count < rank ? -INFINITY : nextafterf(least, -INFINITY));
    }
}

/* Whether fewer than k rows were found for query `q`, as its floor was guessed too high. */
static int guessed_too_high(const Search *search, int64_t q) {
    int64_t found = 0, count = search->queries.count;
    for (int64_t p = 0; p < search->parts; p++) found += search->lists[p * count + q].count;
    return found < search->k && search->lists[q].floor > -INFINITY;
}

/* Fills the lists of all parts with the best rows of each query. */
static void search_rows(const Search *search) {
    int64_t count = search->queries.count;
    int again = 0;
    guess_floors(search);
    scan_rows(search, 1, search->k);
    for (int64_t q = 0; q < count; q++) again |= guessed_too_high(search, q);
    if (!again) return;
    for (int64_t q = 0; q < count; q++) restart(search, q, -INFINITY);
    scan_rows(search, 1, search->k);
}

/* Writes the best rows of one query, merged from its lists, one per part. */
static void write_best(BestList *lists, int64_t parts, int64_t step, const TopK *best, int64_t query) {
    merge_parts(lists, parts, step, best->k);
    for (int64_t i = 0; i < best->k; i++) {
        int filled = i < lists->count;
        best->score[query * best->k + i] = filled ? lists->score[i] : -INFINITY;
        best->row[query * best->k + i] = filled ? lists->row[i] : 0;
    }
}

/* Finds the best rows of each query. Returns 0, or -1 if memory runs out. */
int EXPORT(scan)(const States *states, const Queries *queries, int64_t parts, const TopK *best) {
    int64_t count = queries->count, capacity = CAPACITY(best->k), all = parts * count;
    PreparedQueries prepared;
    int ready = allocate_queries(&prepared, count, states->width);
    int64_t room = BLOCK * (prepared.padded_width + prepared.padded_count); /* numbers of scratch of one part */
    BestList *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score), *scratch = aligned_zeros(parts * room);
    int32_t *row = malloc((size_t)(all * capacity) * sizeof *row);
    int failed = !ready || !lists || !score || !row || !scratch;
    if (!failed) {
        prepare_queries(queries, states, &prepared);
        for (int64_t i = 0; i < all; i++) lists[i] = (BestList){score + i * capacity, row + i * capacity, 0, -INFINITY};
        Search search = {states, prepared, parts, best->k, lists, scratch, room};
        search_rows(&search);
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t q = 0; q < count; q++) write_best(lists + q, parts, count, best, q);
    }
    free(lists);
    free(score);
    free(row);
    free(scratch);
    free_queries(&prepared);
    return failed ? -1 : 0;
}
