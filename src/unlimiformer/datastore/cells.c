/* The search of the cell store: looks only into cells that may hold one of the K best rows.
 *
 * Rows are kept in cells of neighbours, twice: as they are, and as codes of a few dimensions (7 bits each), in blocks of
 * eight rows whose numbers are interleaved by fours. A cell has a centre, coded alike, and a spread. A query
 *   1. scores all centres; a cell's bound is its centre's score plus the query's reach times the cell's spread;
 *   2. scans the codes of the cells with the highest bounds, its seeds, which tells how high a score must be;
 *   3. scans all other cells whose bound is that high, cell by cell for all queries that want it;
 *   4. scores the best rows exactly, by themselves and not by their codes, and keeps the K best.
 * What is added to all scores of a query alike changes nothing and is left out.
 */
#include "lists.h"

#define FOURS 4  /* dimensions that lie together */
#define AT_ONCE 4 /* queries that share one reading of a block */
#define LEVELS 2048
#define SEED_SHARE 4 /* seeds hold at least this many times the rows that are rescored */

typedef struct {
    const uint8_t *codes;   /* (blocks, dims / FOURS, BLOCK, FOURS) */
    const int64_t *start;   /* (cells + 1): each cell's first block */
    const int32_t *size;    /* (cells): its rows; the last block may have fewer than BLOCK */
    const int32_t *row;     /* (blocks * BLOCK): which row it is */
    const uint8_t *centres; /* like codes, a row a cell, with all directions: their number is `width` */
    const float *spread;    /* (cells) */
    int64_t cells, dims, width;
} cell_index;

/* Sums (count, BLOCK) of one block of codes with each of `count` <= AT_ONCE queries (dims int8 each). */
#if defined(__AVX2__)
#define ADD(q)                                                                                           \
    do {                                                                                                 \
        __m256i four = _mm256_set1_epi32(*(const int32_t *)(query##q + i));                              \
        sum##q = _mm256_add_epi32(sum##q, _mm256_madd_epi16(_mm256_maddubs_epi16(x, four), ones));       \
    } while (0)
#define LOOP(body)                                                                \
    for (int64_t i = 0; i < dims; i += FOURS) {                                   \
        __m256i x = _mm256_loadu_si256((const __m256i *)(codes + i * BLOCK));     \
        body                                                                      \
    }
static inline void dots_block(const uint8_t *codes, const int8_t *const *queries, int count, int64_t dims, int32_t *out) {
    const int8_t *query0 = queries[0], *query1 = queries[count > 1], *query2 = queries[count > 2 ? 2 : 0];
    const int8_t *query3 = queries[count > 3 ? 3 : 0];
    __m256i ones = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    __m256i sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
    if (count == 1) LOOP(ADD(0);)
    else if (count == 2) LOOP(ADD(0); ADD(1);)
    else LOOP(ADD(0); ADD(1); ADD(2); ADD(3);)
    _mm256_storeu_si256((__m256i *)out, sum0);
    if (count > 1) _mm256_storeu_si256((__m256i *)(out + BLOCK), sum1);
    if (count > 2) _mm256_storeu_si256((__m256i *)(out + 2 * BLOCK), sum2);
    if (count > 3) _mm256_storeu_si256((__m256i *)(out + 3 * BLOCK), sum3);
}
#undef LOOP
#undef ADD
#else
static inline void dots_block(const uint8_t *codes, const int8_t *const *queries, int count, int64_t dims, int32_t *out) {
    for (int q = 0; q < count; q++) {
        for (int t = 0; t < BLOCK; t++) out[q * BLOCK + t] = 0;
        for (int64_t i = 0; i < dims; i += FOURS)
            for (int t = 0; t < BLOCK; t++)
                for (int f = 0; f < FOURS; f++) out[q * BLOCK + t] += codes[i * BLOCK + t * FOURS + f] * queries[q][i + f];
    }
}
#endif

/* Which of eight sums are above a floor, as bits. */
static inline unsigned above(const int32_t *sums, int32_t floor) {
#if defined(__AVX2__)
    __m256i greater = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)sums), _mm256_set1_epi32(floor));
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(greater));
#else
    unsigned bits = 0;
    for (int t = 0; t < BLOCK; t++) bits |= (unsigned)(sums[t] > floor) << t;
    return bits;
#endif
}

static inline int32_t whole_floor(const best_list *list, float scale, float offset) {
    float floor = (list->floor - offset) / scale;
    return floor > -2e9f ? (floor < 2e9f ? (int32_t)floorf(floor) : 2000000000) : -2000000000;
}

/* Offers the rows of one cell to the lists of `count` <= AT_ONCE queries, numbered in `which`; `offset` (queries, cells) is
 * what the directions that have no code add to a row's score, taken from the cell's centre. */
static void scan_cell(const cell_index *index, int64_t cell, const int8_t *queries, const float *scales,
                      const float *offset, const int *which, int count, int64_t keep, best_list *lists) {
    const int8_t *at[AT_ONCE];
    int32_t sums[AT_ONCE * BLOCK], floors[AT_ONCE];
    float base[AT_ONCE];
    for (int q = 0; q < count; q++) {
        at[q] = queries + which[q] * index->width;
        base[q] = offset[which[q] * index->cells + cell];
        floors[q] = whole_floor(&lists[which[q]], scales[which[q]], base[q]);
    }
    for (int64_t block = index->start[cell]; block < index->start[cell + 1]; block++) {
        int64_t rows = index->size[cell] - (block - index->start[cell]) * BLOCK;
        unsigned real = rows < BLOCK ? (1u << rows) - 1 : 255u;
        dots_block(index->codes + block * BLOCK * index->dims, at, count, index->dims, sums);
        for (int q = 0; q < count; q++) {
            unsigned bits = above(sums + q * BLOCK, floors[q]) & real;
            if (!bits) continue;
            best_list *list = &lists[which[q]];
            for (; bits; bits &= bits - 1) {
                int t = __builtin_ctz(bits);
                list->score[list->count] = scales[which[q]] * (float)sums[q * BLOCK + t] + base[q];
                list->row[list->count++] = (int32_t)(block * BLOCK + t);
            }
            if (list->count > CAPACITY(keep) - BLOCK) {
                drop_low(list, keep);
                floors[q] = whole_floor(list, scales[which[q]], base[q]);
            }
        }
    }
}

/* The lowest bound of the seeds: cells from there on hold at least `rows` rows. */
static float seed_bound(const float *bound, const int32_t *size, int64_t cells, int64_t rows) {
    float low = bound[0], high = bound[0];
    for (int64_t c = 1; c < cells; c++) {
        low = bound[c] < low ? bound[c] : low;
        high = bound[c] > high ? bound[c] : high;
    }
    float scale = (LEVELS - 1) / (high - low);
    if (!(scale > 0 && scale < INFINITY)) return low;
    int64_t held[LEVELS] = {0};
    for (int64_t c = 0; c < cells; c++) held[(int32_t)((bound[c] - low) * scale)] += size[c];
    int32_t level = LEVELS - 1;
    for (int64_t above = held[level]; above < rows && level > 0; above += held[level]) level--;
    return low + (float)level / scale;
}

static float dot_row(const char *row, int kind, const float *query, const int16_t *whole, int64_t width) {
    if (kind == INT8) {
        const int8_t *x = (const int8_t *)row;
        int32_t sum = 0;
        for (int64_t i = 0; i < width; i++) sum += x[i] * whole[i];
        return (float)sum;
    }
    float sum = 0;
    if (kind == FLOAT32) {
        const float *x = (const float *)row;
        for (int64_t i = 0; i < width; i++) sum += x[i] * query[i];
    } else {
        const uint16_t *x = (const uint16_t *)row;
        for (int64_t i = 0; i < width; i++) sum += from_bfloat16(x[i]) * query[i];
    }
    return sum;
}

/* Gives the rows in a list the scores of their states, and keeps the K best. */
static void rescore(best_list *list, const cell_index *index, const char *states, int kind, const float *row_scales,
                    int64_t width, const float *query, int16_t *whole, int64_t keep, float *out_score, int64_t *out_row) {
    float peak = 1e-30f, largest = fminf(32767.0f, floorf(2147483392.0f / (127.0f * (float)width)));
    for (int64_t i = 0; i < width; i++) peak = fmaxf(peak, fabsf(query[i]));
    if (kind == INT8)
        for (int64_t i = 0; i < width; i++) whole[i] = (int16_t)rintf(query[i] * (largest / peak));
    int64_t stride = bytes_of(kind, width);
    for (int64_t i = 0; i < list->count; i++) list->row[i] = index->row[list->row[i]];
    for (int64_t i = 0; i < list->count; i++) {
        if (i + 4 < list->count)
            for (int64_t b = 0; b < stride; b += 64) __builtin_prefetch(states + list->row[i + 4] * stride + b);
        float score = dot_row(states + list->row[i] * stride, kind, query, whole, width);
        if (kind == INT8) score *= peak / largest;
        list->score[i] = row_scales ? score * row_scales[list->row[i]] : score;
    }
    if (list->count > keep) select_best(list, keep);
    for (int64_t i = 0; i < keep; i++) {
        int filled = i < list->count && list->score[i] > -INFINITY;
        out_score[i] = filled ? list->score[i] : -INFINITY;
        out_row[i] = filled ? list->row[i] : 0;
    }
}

/* The `keep` best rows of each of `count` queries, among those in cells that are worth looking into.
 * coded (count, all_dims): the queries as they meet codes. reach (count): how far above its centre a cell may score, in spreads.
 * scanned (count): how many rows each looked at. Returns 0, or -1 when there is no memory. */
int search_cells(const uint8_t *codes, const int64_t *start, const int32_t *size, const int32_t *row,
                 const uint8_t *centres, const float *spread, int64_t cells, int64_t dims, int64_t all_dims,
                 const char *states, int kind,
                 const float *row_scales, int64_t width, const float *queries, const float *coded, const float *reach,
                 int64_t count, int64_t candidates, int64_t keep, int64_t parts, float *out_score, int64_t *out_row,
                 int64_t *scanned) {
    cell_index index = {codes, start, size, row, centres, spread, cells, dims, all_dims};
    int64_t capacity = CAPACITY(candidates), all = parts * count;
    best_list *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score);
    int32_t *place = malloc((size_t)(all * capacity) * sizeof *place);
    float *bound = malloc((size_t)(count * cells) * sizeof *bound), *scales = malloc((size_t)count * sizeof *scales);
    float *seeds = malloc((size_t)count * sizeof *seeds), *offset = malloc((size_t)(count * cells) * sizeof *offset);
    int8_t *small = malloc((size_t)(count * all_dims));
    int16_t *whole = malloc((size_t)(count * width) * sizeof *whole);
    int failed = !lists || !score || !place || !bound || !scales || !seeds || !offset || !small || !whole;
    if (!failed) {
        for (int64_t i = 0; i < all; i++) lists[i] = (best_list){score + i * capacity, place + i * capacity, 0, -INFINITY};
        for (int64_t q = 0; q < count; q++) {
            float peak = 1e-30f;
            const float *from = coded + q * all_dims;
            for (int64_t i = 0; i < all_dims; i++) peak = fmaxf(peak, fabsf(from[i]));
            for (int64_t i = 0; i < all_dims; i++) small[q * all_dims + i] = (int8_t)rintf(from[i] * (127.0f / peak));
            scales[q] = peak / 127.0f;
            scanned[q] = 0;
        }
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t block = 0; block < (cells + BLOCK - 1) / BLOCK; block++) {
            for (int64_t q = 0; q < count; q += AT_ONCE) {
                const int8_t *at[AT_ONCE] = {0};
                int32_t sums[AT_ONCE * BLOCK], rest[AT_ONCE * BLOCK] = {0};
                int here = count - q < AT_ONCE ? (int)(count - q) : AT_ONCE;
                const uint8_t *centre = centres + block * BLOCK * all_dims;
                for (int i = 0; i < here; i++) at[i] = small + (q + i) * all_dims;
                dots_block(centre, at, here, dims, sums);
                for (int i = 0; i < here; i++) at[i] += dims;
                if (all_dims > dims) dots_block(centre + BLOCK * dims, at, here, all_dims - dims, rest);
                for (int i = 0; i < here; i++)
                    for (int64_t t = 0; t < BLOCK && block * BLOCK + t < cells; t++) {
                        int64_t c = block * BLOCK + t;
                        offset[(q + i) * cells + c] = scales[q + i] * (float)rest[i * BLOCK + t];
                        bound[(q + i) * cells + c] = scales[q + i] * (float)sums[i * BLOCK + t] +
                                                     offset[(q + i) * cells + c] + reach[q + i] * spread[c];
                    }
            }
        }
#pragma omp parallel for schedule(dynamic) num_threads(parts)
        for (int64_t q = 0; q < count; q++) {
            int which = (int)q;
            best_list *list = &lists[q];
            seeds[q] = seed_bound(bound + q * cells, size, cells, SEED_SHARE * candidates);
            for (int64_t c = 0; c < cells; c++)
                if (bound[q * cells + c] >= seeds[q]) {
                    scan_cell(&index, c, small, scales, offset, &which, 1, candidates, lists);
                    scanned[q] += size[c];
                }
            if (list->count > candidates) drop_low(list, candidates);
        }
        for (int64_t p = 1; p < parts; p++)
            for (int64_t q = 0; q < count; q++) lists[p * count + q].floor = lists[q].floor;
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t p = 0; p < parts; p++) {
            best_list *mine = lists + p * count;
            for (int64_t c = cells * p / parts; c < cells * (p + 1) / parts; c++) {
                int which[AT_ONCE], wanted = 0;
                for (int64_t q = 0; q < count; q++) {
                    float high = bound[q * cells + c];
                    if (high >= mine[q].floor && high < seeds[q]) which[wanted++] = (int)q;
                    if (wanted == AT_ONCE || (wanted && q == count - 1)) {
                        scan_cell(&index, c, small, scales, offset, which, wanted, candidates, mine);
                        wanted = 0;
                    }
                }
            }
        }
#pragma omp parallel for schedule(dynamic) num_threads(parts)
        for (int64_t q = 0; q < count; q++) {
            merge_parts(lists + q, parts, count, candidates);
            for (int64_t c = 0; c < cells; c++) {
                float high = bound[q * cells + c];
                scanned[q] += high < seeds[q] && high >= lists[q].floor ? size[c] : 0;
            }
            rescore(lists + q, &index, states, kind, row_scales, width, queries + q * width, whole + q * width, keep,
                    out_score + q * keep, out_row + q * keep);
        }
    }
    free(lists); free(score); free(place); free(bound); free(scales); free(seeds); free(offset); free(small); free(whole);
    return failed ? -1 : 0;
}
