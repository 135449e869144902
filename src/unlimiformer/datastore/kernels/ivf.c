/* The search of the IVF store: scans only the cells that may hold one of the K best rows.
 *
 * Rows are grouped into cells of neighbours and stored twice: as states, and as codes (7 bits for each of the first few
 * directions), in blocks of eight rows whose codes are interleaved by fours. A cell has a centre, coded in the same
 * way, and a spread. For each query the search
 *   1. scores all centres; the bound of a cell is its centre's score plus the query's reach times the cell's spread;
 *   2. scans the codes of the cells with the highest bounds, the seeds, which gives a first floor for the scores;
 *   3. scans all other cells whose bound is above the floor, each cell for several queries at once;
 *   4. rescores the best rows by their states instead of their codes, and keeps the K best.
 * Terms that all scores of a query have in common do not change their order and are left out.
 */
#include "products/products.h"

#define BOUND_LEVELS 2048
#define EARLY 64        /* directions that decide whether the other coded ones are computed for a row */
#define MARGIN 2.0f     /* tolerance of that decision, in standard deviations of what the other ones add */
#define SEED_FACTOR 4   /* the seeds hold at least this many times the rows that are rescored */

/* ---- arguments that come from Python; native.py declares the same fields in the same order ---- */

typedef struct {
    const uint8_t *codes;   /* (blocks, coded / INTERLEAVED, BLOCK, INTERLEAVED) */
    const int64_t *start;   /* (cells + 1): first block of each cell */
    const int32_t *size;    /* (cells): rows of each cell; its last block may have fewer than BLOCK */
    const int32_t *row;     /* (blocks * BLOCK): the row that each code belongs to */
    const uint8_t *centres; /* laid out like codes, one centre per cell, with all directions */
    const float *spread;    /* (cells) */
    int64_t cells, coded, directions; /* rows have codes of the first `coded` directions */
    float code_deviation;   /* standard deviation of the codes of one direction */
} CellIndex;

typedef struct {
    const float *data;      /* (count, width): for the scores by states */
    const float *projected; /* (count, directions): for the scores by codes */
    const float *reach;     /* (count): how far above the score of its centre a cell may score, in spreads */
    int64_t count, candidates; /* `candidates` rows of each query are rescored */
} CellQueries;

/* ---- one query ---- */

typedef struct {
    int8_t *codes;  /* (directions) */
    float *bound;   /* (cells): the highest score that a row of the cell may have */
    float *uncoded; /* (cells): what the directions without codes add, estimated by the centre */
    int32_t *later; /* (cells): what the coded directions after the early ones add, estimated by the centre */
    int32_t margin; /* how far a row may differ from its centre in them */
    float scale;    /* factor from sums of codes to scores */
    float seed_bound; /* cells with at least this bound are the seeds */
} CodedQuery;

static inline int64_t early_directions(const CellIndex *index) { return index->coded < EARLY ? index->coded : EARLY; }

/* The floor of a list as a sum of codes. */
static inline int32_t floor_of_codes(const BestList *list, float scale, float offset) {
    float floor = (list->floor - offset) / scale;
    return floor > -2e9f ? (floor < 2e9f ? (int32_t)floorf(floor) : 2000000000) : -2000000000;
}

/* Rounds a projected query (directions) to int8 codes. */
static void code_query(const CellIndex *index, const float *projected, CodedQuery *query) {
    float peak = 1e-30f, squares = 0;
    for (int64_t i = 0; i < index->directions; i++) peak = fmaxf(peak, fabsf(projected[i]));
    for (int64_t i = 0; i < index->directions; i++) query->codes[i] = (int8_t)rintf(projected[i] * (127.0f / peak));
    for (int64_t i = early_directions(index); i < index->coded; i++)
        squares += (float)query->codes[i] * (float)query->codes[i];
    query->scale = peak / 127.0f;
    query->margin = (int32_t)(MARGIN * index->code_deviation * sqrtf(squares));
}

/* ---- step 1: bounds of the cells ---- */

/* Scores one block of centres: fills `bound`, `uncoded` and `later` of its cells for all queries. */
static void score_centres(const CellIndex *index, CodedQuery *queries, const CellQueries *batch, int64_t block) {
    int64_t early = early_directions(index);
    const uint8_t *centre = index->centres + block * BLOCK * index->directions;
    for (int64_t q = 0; q < batch->count; q += QUERY_GROUP) {
        const int8_t *codes[QUERY_GROUP] = {0};
        int32_t sums[QUERY_GROUP * BLOCK] = {0}, later[QUERY_GROUP * BLOCK] = {0}, uncoded[QUERY_GROUP * BLOCK] = {0};
        int group = batch->count - q < QUERY_GROUP ? (int)(batch->count - q) : QUERY_GROUP;
        for (int i = 0; i < group; i++) codes[i] = queries[q + i].codes;
        dots_block(centre, codes, group, early, sums);
        for (int i = 0; i < group; i++) codes[i] += early;
        dots_block(centre + BLOCK * early, codes, group, index->coded - early, later);
        for (int i = 0; i < group; i++) codes[i] += index->coded - early;
        dots_block(centre + BLOCK * index->coded, codes, group, index->directions - index->coded, uncoded);
        for (int i = 0; i < group; i++) {
            CodedQuery *query = queries + q + i;
            for (int64_t t = 0; t < BLOCK && block * BLOCK + t < index->cells; t++) {
                int64_t c = block * BLOCK + t;
                query->later[c] = later[i * BLOCK + t];
                query->uncoded[c] = query->scale * (float)uncoded[i * BLOCK + t];
                query->bound[c] = query->scale * (float)(sums[i * BLOCK + t] + later[i * BLOCK + t]) +
                                  query->uncoded[c] + batch->reach[q + i] * index->spread[c];
            }
        }
    }
}

/* The lowest bound of the seeds: the cells with at least this bound hold at least `rows` rows. */
static float lowest_seed_bound(const CellIndex *index, const float *bound, int64_t rows) {
    float low = bound[0], high = bound[0];
    for (int64_t c = 1; c < index->cells; c++) {
        low = bound[c] < low ? bound[c] : low;
        high = bound[c] > high ? bound[c] : high;
    }
    float scale = (BOUND_LEVELS - 1) / (high - low);
    if (!(scale > 0 && scale < INFINITY)) return low;
    int64_t rows_at_level[BOUND_LEVELS] = {0};
    for (int64_t c = 0; c < index->cells; c++) rows_at_level[(int32_t)((bound[c] - low) * scale)] += index->size[c];
    int32_t level = BOUND_LEVELS - 1;
    for (int64_t sum = rows_at_level[level]; sum < rows && level > 0; sum += rows_at_level[level]) level--;
    return low + (float)level / scale;
}

/* ---- steps 2 and 3: scan cells ---- */

/* Offers the rows of one cell to the lists of `count` <= QUERY_GROUP queries, whose indices are in `which`.
 *
 * The early directions carry most of a score. What the later ones add is first estimated by the centre: rows that stay
 * below the floor even with `margin` more are skipped. What the directions without codes add is the centre's. */
static void scan_cell(const CellIndex *index, int64_t cell, const CodedQuery *queries, const int *which, int count,
                      int64_t candidates, BestList *lists) {
    const int8_t *codes_of[QUERY_GROUP], *later_codes[QUERY_GROUP];
    int32_t floors[QUERY_GROUP], early_floors[QUERY_GROUP];
    int64_t early = early_directions(index);
    for (int q = 0; q < count; q++) {
        const CodedQuery *query = queries + which[q];
        codes_of[q] = query->codes;
        floors[q] = floor_of_codes(&lists[which[q]], query->scale, query->uncoded[cell]);
        early_floors[q] = floors[q] > -1000000000 ? floors[q] - query->later[cell] - query->margin : floors[q];
    }
    for (int64_t block = index->start[cell]; block < index->start[cell + 1]; block++) {
        const uint8_t *codes = index->codes + block * BLOCK * index->coded;
        int64_t rows = index->size[cell] - (block - index->start[cell]) * BLOCK;
        unsigned filled = rows < BLOCK ? (1u << rows) - 1 : 255u;
        int32_t sums[QUERY_GROUP * BLOCK] = {0}, full_sums[QUERY_GROUP * BLOCK];
        int passed[QUERY_GROUP], passes = 0; /* queries for which a row of the block is not skipped */
        dots_block(codes, codes_of, count, early, sums);
        for (int q = 0; q < count; q++) {
            if (!(above(sums + q * BLOCK, early_floors[q]) & filled)) continue;
            memcpy(full_sums + passes * BLOCK, sums + q * BLOCK, BLOCK * sizeof *sums);
            later_codes[passes] = codes_of[q] + early;
            passed[passes++] = q;
        }
        if (!passes) continue;
        if (index->coded > early)
            dots_block(codes + BLOCK * early, later_codes, passes, index->coded - early, full_sums);
        for (int i = 0; i < passes; i++) {
            int q = passed[i];
            const CodedQuery *query = queries + which[q];
            BestList *list = &lists[which[q]];
            for (unsigned bits = above(full_sums + i * BLOCK, floors[q]) & filled; bits; bits &= bits - 1) {
                int t = __builtin_ctz(bits);
                list->score[list->count] = query->scale * (float)full_sums[i * BLOCK + t] + query->uncoded[cell];
                list->row[list->count++] = (int32_t)(block * BLOCK + t);
            }
            if (list->count > CAPACITY(candidates) - BLOCK) {
                drop_low(list, candidates);
                floors[q] = floor_of_codes(list, query->scale, query->uncoded[cell]);
                early_floors[q] = floors[q] - query->later[cell] - query->margin;
            }
        }
    }
}

/* Step 2 for query `q`: scans its seeds into its list. Returns how many rows they have. */
static int64_t scan_seeds(const CellIndex *index, CodedQuery *queries, int64_t q, int64_t candidates, BestList *lists) {
    int which = (int)q;
    int64_t scanned = 0;
    queries[q].seed_bound = lowest_seed_bound(index, queries[q].bound, SEED_FACTOR * candidates);
    for (int64_t c = 0; c < index->cells; c++)
        if (queries[q].bound[c] >= queries[q].seed_bound) {
            scan_cell(index, c, queries, &which, 1, candidates, lists);
            scanned += index->size[c];
        }
    if (lists[q].count > candidates) drop_low(&lists[q], candidates);
    return scanned;
}

/* Step 3 for one cell: scans it for all queries whose floor it may exceed. Adds its rows to their `scanned`. */
static void scan_other_cell(const CellIndex *index, int64_t cell, const CodedQuery *queries, const CellQueries *batch,
                            BestList *lists, int64_t *scanned) {
    int which[QUERY_GROUP], group = 0;
    for (int64_t q = 0; q < batch->count; q++) {
        float bound = queries[q].bound[cell];
        if (bound >= lists[q].floor && bound < queries[q].seed_bound) {
            which[group++] = (int)q;
            scanned[q] += index->size[cell];
        }
        if (group == QUERY_GROUP || (group && q == batch->count - 1)) {
            scan_cell(index, cell, queries, which, group, batch->candidates, lists);
            group = 0;
        }
    }
}

/* ---- step 4: score by the states ---- */

/* `quantized`: the query as int16, for int8 rows. */
static float dot_row(const char *row, int64_t kind, const float *query, const int16_t *quantized, int64_t width) {
    if (kind == INT8) {
        const int8_t *x = (const int8_t *)row;
        int32_t sum = 0;
        for (int64_t i = 0; i < width; i++) sum += x[i] * quantized[i];
        return (float)sum;
    }
    float sum = 0;
    if (kind == FLOAT32) {
        const float *x = (const float *)row;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += x[i] * query[i];
    } else {
        const uint16_t *x = (const uint16_t *)row;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += from_bfloat16(x[i]) * query[i];
    }
    return sum;
}

/* Replaces the scores by codes in the list of query `q` by those of the states, and writes the K best.
 * scratch (width): room for the query as int16. */
static void rescore(BestList *list, const CellIndex *index, const States *states, const CellQueries *batch, int64_t q,
                    int16_t *scratch, const TopK *best) {
    int64_t stride = row_bytes(states), width = states->width, kind = states->kind;
    const float *query = batch->data + q * width;
    float unit = kind == INT8 ? quantize_query(query, width, scratch) : 1.0f;
    for (int64_t i = 0; i < list->count; i++) list->row[i] = index->row[list->row[i]];
    for (int64_t i = 0; i < list->count; i++) {
        if (i + 4 < list->count)
            for (int64_t b = 0; b < stride; b += 64) __builtin_prefetch(states->data + list->row[i + 4] * stride + b);
        float score = unit * dot_row(states->data + list->row[i] * stride, kind, query, scratch, width);
        list->score[i] = states->scales ? score * states->scales[list->row[i]] : score;
    }
    if (list->count > best->k) select_best(list, best->k);
    for (int64_t i = 0; i < best->k; i++) {
        int filled = i < list->count && list->score[i] > -INFINITY;
        best->score[q * best->k + i] = filled ? list->score[i] : -INFINITY;
        best->row[q * best->k + i] = filled ? list->row[i] : 0;
    }
}

/* ---- the search ---- */

/* Finds the best rows of each query. scanned (count): how many rows were scanned by their codes.
 * Returns 0, or -1 if memory runs out. */
int EXPORT(search_ivf)(const CellIndex *index, const States *states, const CellQueries *batch, int64_t parts, const TopK *best,
               int64_t *scanned) {
    int64_t cells = index->cells, directions = index->directions, count = batch->count, candidates = batch->candidates;
    int64_t capacity = CAPACITY(candidates), all = parts * count;
    BestList *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score);
    int32_t *slot = malloc((size_t)(all * capacity) * sizeof *slot);
    CodedQuery *queries = malloc((size_t)count * sizeof *queries);
    float *bounds = malloc((size_t)(2 * count * cells) * sizeof *bounds);
    int32_t *later = malloc((size_t)(count * cells) * sizeof *later);
    int8_t *codes = malloc((size_t)(count * directions));
    int16_t *quantized = malloc((size_t)(count * states->width) * sizeof *quantized);
    int64_t *scanned_by_part = calloc((size_t)all, sizeof *scanned_by_part);
    int failed = !lists || !score || !slot || !queries || !scanned_by_part || !bounds || !later || !codes || !quantized;
    if (!failed) {
        for (int64_t i = 0; i < all; i++)
            lists[i] = (BestList){score + i * capacity, slot + i * capacity, 0, -INFINITY};
        for (int64_t q = 0; q < count; q++) {
            queries[q] = (CodedQuery){.codes = codes + q * directions,
                                      .bound = bounds + 2 * q * cells,
                                      .uncoded = bounds + (2 * q + 1) * cells,
                                      .later = later + q * cells};
            code_query(index, batch->projected + q * directions, &queries[q]);
        }
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t block = 0; block < (cells + BLOCK - 1) / BLOCK; block++)
            score_centres(index, queries, batch, block);
#pragma omp parallel for schedule(dynamic) num_threads(parts)
        for (int64_t q = 0; q < count; q++) scanned[q] = scan_seeds(index, queries, q, candidates, lists);
        for (int64_t p = 1; p < parts; p++)
            for (int64_t q = 0; q < count; q++) lists[p * count + q].floor = lists[q].floor;
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t p = 0; p < parts; p++)
            for (int64_t c = cells * p / parts; c < cells * (p + 1) / parts; c++)
                scan_other_cell(index, c, queries, batch, lists + p * count, scanned_by_part + p * count);
#pragma omp parallel for schedule(dynamic) num_threads(parts)
        for (int64_t q = 0; q < count; q++) {
            merge_parts(lists + q, parts, count, candidates);
            for (int64_t p = 0; p < parts; p++) scanned[q] += scanned_by_part[p * count + q];
            rescore(lists + q, index, states, batch, q, quantized + q * states->width, best);
        }
    }
    free(lists); free(score); free(slot); free(queries); free(bounds); free(later); free(codes); free(quantized);
    free(scanned_by_part);
    return failed ? -1 : 0;
}
