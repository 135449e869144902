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
#include "topk.h"

#define FOURS 4  /* dimensions that lie together */
#define AT_ONCE 4 /* queries that share one reading of a block */
#define LEVELS 2048
#define FIRST 64      /* directions that decide whether a row is worth the others */
#define MARGIN 2.0f   /* in spreads of what the others add */
#define SEED_SHARE 4 /* seeds hold at least this many times the rows that are rescored */

typedef struct {
    const uint8_t *codes;   /* (blocks, dims / FOURS, BLOCK, FOURS) */
    const int64_t *start;   /* (cells + 1): each cell's first block */
    const int32_t *size;    /* (cells): its rows; the last block may have fewer than BLOCK */
    const int32_t *row;     /* (blocks * BLOCK): which row it is */
    const uint8_t *centres; /* like codes, a row a cell, with all directions: their number is `width` */
    const float *spread;    /* (cells) */
    int64_t cells, dims, width, first; /* `first` of the `dims` coded directions decide about the others */
} cell_index;

/* One query as it meets codes. */
typedef struct {
    int8_t *codes;  /* (width) */
    float *bound;   /* (cells): how high a row of the cell may score */
    float *uncoded; /* (cells): what directions without a code add, taken from the centre */
    int32_t *later; /* (cells): what coded directions after the first add, taken from the centre */
    int32_t margin; /* by how much a row may differ from its centre there */
    float scale, seeds;
} asked;

/* Adds to sums (count, BLOCK) the products of one block of codes with each of `count` <= AT_ONCE queries (dims int8 each). */
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
    __m256i *sums = (__m256i *)out;
    __m256i sum0 = _mm256_loadu_si256(sums), sum1 = count > 1 ? _mm256_loadu_si256(sums + 1) : zero;
    __m256i sum2 = count > 2 ? _mm256_loadu_si256(sums + 2) : zero, sum3 = count > 3 ? _mm256_loadu_si256(sums + 3) : zero;
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

/* Offers the rows of one cell to the lists of `count` <= AT_ONCE queries, numbered in `which`.
 *
 * The first FIRST directions carry most of a score. What the other coded ones add is guessed from the cell's centre; rows
 * that stay below the floor even with `margin` more are given up. What the directions without a code add is the centre's. */
static void scan_cell(const cell_index *index, int64_t cell, const asked *queries, const int *which, int count,
                      int64_t keep, best_list *lists) {
    const int8_t *at[AT_ONCE], *later[AT_ONCE];
    int32_t floors[AT_ONCE], early[AT_ONCE];
    int64_t first = index->first;
    for (int q = 0; q < count; q++) {
        const asked *query = queries + which[q];
        at[q] = query->codes;
        floors[q] = whole_floor(&lists[which[q]], query->scale, query->uncoded[cell]);
        early[q] = floors[q] > -1000000000 ? floors[q] - query->later[cell] - query->margin : floors[q];
    }
    for (int64_t block = index->start[cell]; block < index->start[cell + 1]; block++) {
        const uint8_t *codes = index->codes + block * BLOCK * index->dims;
        int64_t rows = index->size[cell] - (block - index->start[cell]) * BLOCK;
        unsigned real = rows < BLOCK ? (1u << rows) - 1 : 255u;
        int32_t sums[AT_ONCE * BLOCK] = {0}, hopeful[AT_ONCE * BLOCK];
        int left[AT_ONCE], hopes = 0;
        dots_block(codes, at, count, first, sums);
        for (int q = 0; q < count; q++) {
            if (!(above(sums + q * BLOCK, early[q]) & real)) continue;
            memcpy(hopeful + hopes * BLOCK, sums + q * BLOCK, BLOCK * sizeof *sums);
            later[hopes] = at[q] + first;
            left[hopes++] = q;
        }
        if (!hopes) continue;
        if (index->dims > first) dots_block(codes + BLOCK * first, later, hopes, index->dims - first, hopeful);
        for (int h = 0; h < hopes; h++) {
            int q = left[h];
            const asked *query = queries + which[q];
            best_list *list = &lists[which[q]];
            for (unsigned bits = above(hopeful + h * BLOCK, floors[q]) & real; bits; bits &= bits - 1) {
                int t = __builtin_ctz(bits);
                list->score[list->count] = query->scale * (float)hopeful[h * BLOCK + t] + query->uncoded[cell];
                list->row[list->count++] = (int32_t)(block * BLOCK + t);
            }
            if (list->count > CAPACITY(keep) - BLOCK) {
                drop_low(list, keep);
                floors[q] = whole_floor(list, query->scale, query->uncoded[cell]);
                early[q] = floors[q] - query->later[cell] - query->margin;
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
    float unit = kind == INT8 ? whole_query(query, width, whole) : 1.0f;
    int64_t stride = bytes_of(kind, width);
    for (int64_t i = 0; i < list->count; i++) list->row[i] = index->row[list->row[i]];
    for (int64_t i = 0; i < list->count; i++) {
        if (i + 4 < list->count)
            for (int64_t b = 0; b < stride; b += 64) __builtin_prefetch(states + list->row[i + 4] * stride + b);
        float score = unit * dot_row(states + list->row[i] * stride, kind, query, whole, width);
        list->score[i] = row_scales ? score * row_scales[list->row[i]] : score;
    }
    if (list->count > keep) select_best(list, keep);
    for (int64_t i = 0; i < keep; i++) {
        int filled = i < list->count && list->score[i] > -INFINITY;
        out_score[i] = filled ? list->score[i] : -INFINITY;
        out_row[i] = filled ? list->row[i] : 0;
    }
}

/* Fills in what a query's centres tell. `reach`: how far above its centre's score a cell may go, in spreads. */
static void ask_centres(const cell_index *index, asked *queries, int64_t count, const float *reach, int64_t block) {
    int64_t first = index->first;
    const uint8_t *centre = index->centres + block * BLOCK * index->width;
    for (int64_t q = 0; q < count; q += AT_ONCE) {
        const int8_t *at[AT_ONCE] = {0};
        int32_t sums[AT_ONCE * BLOCK] = {0}, later[AT_ONCE * BLOCK] = {0}, rest[AT_ONCE * BLOCK] = {0};
        int here = count - q < AT_ONCE ? (int)(count - q) : AT_ONCE;
        for (int i = 0; i < here; i++) at[i] = queries[q + i].codes;
        dots_block(centre, at, here, first, sums);
        for (int i = 0; i < here; i++) at[i] += first;
        dots_block(centre + BLOCK * first, at, here, index->dims - first, later);
        for (int i = 0; i < here; i++) at[i] += index->dims - first;
        dots_block(centre + BLOCK * index->dims, at, here, index->width - index->dims, rest);
        for (int i = 0; i < here; i++) {
            asked *query = queries + q + i;
            for (int64_t t = 0; t < BLOCK && block * BLOCK + t < index->cells; t++) {
                int64_t c = block * BLOCK + t;
                query->later[c] = later[i * BLOCK + t];
                query->uncoded[c] = query->scale * (float)rest[i * BLOCK + t];
                query->bound[c] = query->scale * (float)(sums[i * BLOCK + t] + later[i * BLOCK + t]) + query->uncoded[c] +
                                  reach[q + i] * index->spread[c];
            }
        }
    }
}

/* A query (width) as small whole numbers; `codes_spread` is the standard deviation of a direction's codes. */
static void shrink(const float *coded, const cell_index *index, float codes_spread, asked *query) {
    float peak = 1e-30f, others = 0;
    for (int64_t i = 0; i < index->width; i++) peak = fmaxf(peak, fabsf(coded[i]));
    for (int64_t i = 0; i < index->width; i++) query->codes[i] = (int8_t)rintf(coded[i] * (127.0f / peak));
    for (int64_t i = index->first; i < index->dims; i++) others += (float)query->codes[i] * (float)query->codes[i];
    query->scale = peak / 127.0f;
    query->margin = (int32_t)(MARGIN * codes_spread * sqrtf(others));
}

/* The `keep` best rows of each of `count` queries, among those in cells that are worth looking into.
 * coded (count, all_dims): the queries as they meet codes. reach (count): how far above its centre a cell may score, in
 * spreads. scanned (count): how many rows each looked at. Returns 0, or -1 when there is no memory. */
int search_ivf(const uint8_t *codes, const int64_t *start, const int32_t *size, const int32_t *row,
                 const uint8_t *centres, const float *spread, int64_t cells, int64_t dims, int64_t all_dims,
                 float codes_spread, const char *states, int kind, const float *row_scales, int64_t width,
                 const float *queries, const float *coded, const float *reach, int64_t count, int64_t candidates,
                 int64_t keep, int64_t parts, float *out_score, int64_t *out_row, int64_t *scanned) {
    cell_index index = {codes, start, size, row, centres, spread, cells, dims, all_dims, dims < FIRST ? dims : FIRST};
    int64_t capacity = CAPACITY(candidates), all = parts * count;
    best_list *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score);
    int32_t *place = malloc((size_t)(all * capacity) * sizeof *place);
    asked *ask = malloc((size_t)count * sizeof *ask);
    float *of_cells = malloc((size_t)(2 * count * cells) * sizeof *of_cells);
    int32_t *later = malloc((size_t)(count * cells) * sizeof *later);
    int8_t *small = malloc((size_t)(count * all_dims));
    int16_t *whole = malloc((size_t)(count * width) * sizeof *whole);
    int64_t *looked = calloc((size_t)all, sizeof *looked);
    int failed = !lists || !score || !place || !ask || !looked || !of_cells || !later || !small || !whole;
    if (!failed) {
        for (int64_t i = 0; i < all; i++) lists[i] = (best_list){score + i * capacity, place + i * capacity, 0, -INFINITY};
        for (int64_t q = 0; q < count; q++) {
            ask[q] = (asked){small + q * all_dims, of_cells + 2 * q * cells, of_cells + (2 * q + 1) * cells,
                             later + q * cells, 0, 0, 0};
            shrink(coded + q * all_dims, &index, codes_spread, &ask[q]);
            scanned[q] = 0;
        }
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t block = 0; block < (cells + BLOCK - 1) / BLOCK; block++) ask_centres(&index, ask, count, reach, block);
#pragma omp parallel for schedule(dynamic) num_threads(parts)
        for (int64_t q = 0; q < count; q++) {
            int which = (int)q;
            ask[q].seeds = seed_bound(ask[q].bound, size, cells, SEED_SHARE * candidates);
            for (int64_t c = 0; c < cells; c++)
                if (ask[q].bound[c] >= ask[q].seeds) {
                    scan_cell(&index, c, ask, &which, 1, candidates, lists);
                    scanned[q] += size[c];
                }
            if (lists[q].count > candidates) drop_low(&lists[q], candidates);
        }
        for (int64_t p = 1; p < parts; p++)
            for (int64_t q = 0; q < count; q++) lists[p * count + q].floor = lists[q].floor;
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t p = 0; p < parts; p++) {
            best_list *mine = lists + p * count;
            for (int64_t c = cells * p / parts; c < cells * (p + 1) / parts; c++) {
                int which[AT_ONCE], wanted = 0;
                for (int64_t q = 0; q < count; q++) {
                    float high = ask[q].bound[c];
                    if (high >= mine[q].floor && high < ask[q].seeds) {
                        which[wanted++] = (int)q;
                        looked[p * count + q] += size[c];
                    }
                    if (wanted == AT_ONCE || (wanted && q == count - 1)) {
                        scan_cell(&index, c, ask, which, wanted, candidates, mine);
                        wanted = 0;
                    }
                }
            }
        }
#pragma omp parallel for schedule(dynamic) num_threads(parts)
        for (int64_t q = 0; q < count; q++) {
            merge_parts(lists + q, parts, count, candidates);
            for (int64_t p = 0; p < parts; p++) scanned[q] += looked[p * count + q];
            rescore(lists + q, &index, states, kind, row_scales, width, queries + q * width, whole + q * width, keep,
                    out_score + q * keep, out_row + q * keep);
        }
    }
    free(lists); free(score); free(place); free(ask); free(of_cells); free(later); free(small); free(whole); free(looked);
    return failed ? -1 : 0;
}
