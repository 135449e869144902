/* The two kernels of the exact store.
 *
 * scan: dot products of every stored row with every query. Only the K best of each query are kept, so that no array of
 *       all scores (queries x rows) exists.
 * mix:  weighted sums of selected rows.
 *
 * Rows are float32, bfloat16 or int8 with one scale per row. Queries, scores and sums are float32, except that int8
 * rows are scanned with int16 queries, which doubles the number of products per instruction. The rows are divided into
 * parts that OpenMP, if it is available, runs in parallel.
 */
#include "products/products.h"

#ifndef AHEAD
#define AHEAD 8
#endif

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

/* Products of rows (BLOCK, padded) with queries (QUERIES, padded), both float32: out (QUERIES, BLOCK). Eight sums, of
 * four rows with two queries, stay in registers. */
static inline void dots_float(const float *rows, const float *queries, int64_t padded, float *out) {
    for (int a = 0; a < BLOCK; a += 4) {
        for (int b = 0; b < QUERIES; b += 2) {
            vec sums[4][2];
            memset(sums, 0, sizeof sums);
            for (int64_t i = 0; i < padded; i += LANES) {
                vec q0 = *(const vec *)(queries + b * padded + i), q1 = *(const vec *)(queries + (b + 1) * padded + i);
                IN_REGISTER(q0);
                IN_REGISTER(q1);
                for (int t = 0; t < 4; t++) {
                    vec x = *(const vec *)(rows + (a + t) * padded + i);
                    IN_REGISTER(x);
                    sums[t][0] += x * q0;
                    sums[t][1] += x * q1;
                }
            }
            for (int t = 0; t < 4; t++) {
                out[b * BLOCK + a + t] = total(sums[t][0]);
                out[(b + 1) * BLOCK + a + t] = total(sums[t][1]);
            }
        }
    }
}

/* ---- scan ---- */

/* Queries in the form that the products need. */
typedef struct {
    const void *data;    /* (padded_count, padded_width): float32, or int16 for int8 rows; zeros where padded */
    const float *scales; /* (count): factor of the scores of each query */
    int64_t count, padded_count, padded_width;
} PreparedQueries;

/* Allocates zeros at the start of a cache line: a load that straddles two lines costs double. `count` is a multiple of
 * 16. */
static float *aligned_zeros(int64_t count) {
    float *array = aligned_alloc(64, (size_t)count * sizeof *array);
    return array ? memset(array, 0, (size_t)count * sizeof *array) : NULL;
}

/* Copies the queries to rows of `padded` numbers in `data`, as int16 for int8 rows, and fills their `scales`. */
static void prepare_queries(const Queries *queries, const States *states, int64_t padded, void *data, float *scales) {
    for (int64_t q = 0; q < queries->count; q++) {
        const float *query = queries->data + q * states->width;
        if (states->kind != INT8) {
            memcpy((float *)data + q * padded, query, (size_t)states->width * sizeof(float));
            scales[q] = 1.0f;
            continue;
        }
        scales[q] = quantize_query(query, states->width, (int16_t *)data + q * padded);
    }
}

/* Fills the list of each query with the `k` best of the rows [start, stop), and possibly a few more.
 * scratch: BLOCK expanded rows (BLOCK, padded_width), then scores (padded_count, BLOCK). */
static void scan_part(const States *states, const PreparedQueries *queries, int64_t start, int64_t stop, int64_t k,
                      float *scratch, BestList *lists) {
    int64_t kind = states->kind, width = states->width, padded = queries->padded_width, stride = row_bytes(states);
    float *dots = scratch + BLOCK * padded;
    for (int64_t base = start; base < stop; base += BLOCK) {
        int64_t count = stop - base < BLOCK ? stop - base : BLOCK;
        float scale[BLOCK] = {0};
        for (int64_t a = 0; a < count; a++) {
            scale[a] = states->scales ? states->scales[base + a] : 1.0f;
            if (kind != INT8) expand(states->data + (base + a) * stride, kind, width, scratch + a * padded);
        }
        if (kind != INT8) {
            for (int64_t q = 0; q < queries->padded_count; q += QUERIES)
                dots_float(scratch, (const float *)queries->data + q * padded, padded, dots + q * BLOCK);
        } else { /* all queries for a few rows before the next ones: the rows are read from memory in one even stream */
            for (int64_t a = 0; a < count; a += ROWS) {
                const int8_t *rows[ROWS];
                for (int64_t r = 0; r < ROWS; r++)
                    rows[r] = (const int8_t *)states->data + (base + (a + r < count ? a + r : a)) * stride;
                const int16_t *query = queries->data;
                const char *ahead = (const char *)rows[0] + AHEAD * stride;
                for (int64_t line = 0; line < ROWS * stride; line += 64) __builtin_prefetch(ahead + line);
                for (int64_t q = 0; q < queries->padded_count; q += QUERIES)
                    dots_int8(rows, query + q * padded, width, padded, dots + q * BLOCK + a);
            }
        }
        for (int64_t q = 0; q < queries->count; q++) {
            float *scores = dots + q * BLOCK;
            for (int t = 0; t < BLOCK; t++) scores[t] *= scale[t] * queries->scales[q];
            offer(&lists[q], scores, base, count, k);
        }
    }
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
    int64_t padded = (states->width + PAD - 1) / PAD * PAD, padded_count = (count + QUERIES - 1) / QUERIES * QUERIES;
    BestList *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score);
    int32_t *row = malloc((size_t)(all * capacity) * sizeof *row);
    int64_t room = BLOCK * (padded + padded_count); /* scratch of one part */
    float *scratch = aligned_zeros(parts * room), *data = aligned_zeros(padded_count * padded);
    float *query_scales = malloc((size_t)count * sizeof *query_scales);
    int failed = !lists || !score || !row || !scratch || !data || !query_scales;
    if (!failed) {
        prepare_queries(queries, states, padded, data, query_scales);
        PreparedQueries prepared = {data, query_scales, count, padded_count, padded};
        for (int64_t i = 0; i < all; i++) lists[i] = (BestList){score + i * capacity, row + i * capacity, 0, -INFINITY};
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t p = 0; p < parts; p++)
            scan_part(states, &prepared, states->rows * p / parts, states->rows * (p + 1) / parts, best->k,
                      scratch + p * room, lists + p * count);
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t q = 0; q < count; q++) write_best(lists + q, parts, count, best, q);
    }
    free(lists); free(score); free(row); free(scratch); free(data); free(query_scales);
    return failed ? -1 : 0;
}

/* ---- mix ---- */

typedef struct {
    const int64_t *row;  /* (count, k) */
    const float *weight; /* (count, k) */
    int64_t count, k;
} Mixture;

/* sum[i] += w0 * x0[i] + ... for four rows at a time, so that the sum is loaded and stored a quarter as often */
#define ADD_FOUR(TYPE, VALUE)                                                                                   \
    do {                                                                                                        \
        const TYPE *x0 = (const TYPE *)at[0], *x1 = (const TYPE *)at[1];                                        \
        const TYPE *x2 = (const TYPE *)at[2], *x3 = (const TYPE *)at[3];                                        \
        for (int64_t i = 0; i < width; i++)                                                                     \
            sum[i] += w[0] * VALUE(x0[i]) + w[1] * VALUE(x1[i]) + w[2] * VALUE(x2[i]) + w[3] * VALUE(x3[i]);    \
    } while (0)
#define TO_FLOAT(x) ((float)(x))

/* out (count, width): for each query, the sum over its `k` rows of weight x row. */
void EXPORT(mix)(const States *states, const Mixture *mixture, int64_t parts, float *out) {
    int64_t stride = row_bytes(states), width = states->width, kind = states->kind, k = mixture->k;
    const float *scales = states->scales;
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int64_t q = 0; q < mixture->count; q++) {
        float *restrict sum = out + q * width;
        const int64_t *rows = mixture->row + q * k;
        const float *weights = mixture->weight + q * k;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t j = 0; j < k; j += 4) {
            const char *at[4];
            float w[4];
            for (int64_t t = 0; t < 4; t++) {
                int64_t r = j + t < k ? rows[j + t] : rows[j];
                at[t] = states->data + r * stride;
                w[t] = j + t < k ? weights[j + t] * (scales ? scales[r] : 1.0f) : 0.0f;
                if (j + t + 8 < k)
                    for (int64_t i = 0; i < stride; i += 64)
                        __builtin_prefetch(states->data + rows[j + t + 8] * stride + i);
            }
            if (kind == FLOAT32) ADD_FOUR(float, TO_FLOAT);
            else if (kind == BFLOAT16) ADD_FOUR(uint16_t, from_bfloat16);
            else ADD_FOUR(int8_t, TO_FLOAT);
        }
    }
}
