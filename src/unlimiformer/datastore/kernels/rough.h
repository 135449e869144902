/* A first look at int8 rows with the upper eight bits of the queries, at half the price of the whole products.
 *
 * query = 256 * upper + rest, so that by the Cauchy-Schwarz inequality a product differs from 256 times that of the upper
 * bits by at most |rest| |row|. Rows that this leaves below the floor are skipped; the others are scored as ever, so that
 * what is found stays the same. Only for instruction sets that multiply bytes faster than 16-bit numbers.
 */
#ifndef ROUGH_H
#define ROUGH_H
#include "products/products.h"

/* Queries in the form that the products need. */
typedef struct {
    void *data;     /* (padded_count, padded_width): float32, or int16 for int8 rows; zeros where padded */
    float *scales;  /* (count): factor of the scores of each query */
    int64_t count, padded_count, padded_width;
    /* for int8 rows: */
    int8_t *upper;    /* (padded_count, padded_width): the upper eight bits */
    int32_t *offsets; /* (padded_count): what dots_upper subtracts */
    float *margins;   /* (count): norms of the rest */
} PreparedQueries;

/* Rows that are fetched while others are scored, `share` bytes with each group of products: many at once would wait for
 * each other. */
typedef struct {
    const char *at;
    int64_t share;
} Ahead;

static inline void fetch(Ahead *ahead) {
    for (int64_t i = 0; i < ahead->share; i += 64) __builtin_prefetch(ahead->at + i);
    ahead->at += ahead->share;
}

#if HAS_UPPER

/* Splits query `q` into its upper bits and the norm of the rest, with a little more for what floats round off. */
static void split_query(const PreparedQueries *queries, int64_t q, int64_t width) {
    const int16_t *query = (const int16_t *)queries->data + q * queries->padded_width;
    int8_t *upper = queries->upper + q * queries->padded_width;
    float rest = 0, whole = 0;
    queries->offsets[q] = 0;
    for (int64_t i = 0; i < width; i++) {
        int32_t high = (query[i] + 128) >> 8;
        upper[i] = (int8_t)(high < 127 ? high : 127);
        float low = (float)(query[i] - 256 * upper[i]);
        queries->offsets[q] += 128 * upper[i];
        rest += low * low;
        whole += (float)query[i] * (float)query[i];
    }
    queries->margins[q] = 1.001f * sqrtf(rest) + 2e-6f * sqrtf(whole);
}

/* Offers the rows [base, base + count), which begin at `rows`, to the lists of all queries. Returns 0, with nothing done,
 * unless every list has a floor. dots (padded_count, BLOCK): scratch. */
static int scan_upper(const int8_t *const *rows, const float *scales, const PreparedQueries *queries, int64_t base,
                      int64_t count, int64_t width, int64_t k, Ahead ahead, float *dots, BestList *lists) {
    int64_t padded = queries->padded_width;
    float norms[BLOCK];
    for (int64_t q = 0; q < queries->count; q++)
        if (!(lists[q].floor > -INFINITY)) return 0;
    for (int64_t t = 0; t < BLOCK; t++) norms[t] = norm_int8(rows[t], width);
    for (int64_t a = 0; a < count; a += ROWS)
        for (int64_t q = 0; q < queries->padded_count; q += QUERIES) {
            fetch(&ahead);
            dots_upper(rows + a, queries->upper + q * padded, queries->offsets + q, width, padded, dots + q * BLOCK + a);
        }
    for (int64_t q = 0; q < queries->count; q++) {
        BestList *list = &lists[q];
        unsigned rest = may_exceed(dots + q * BLOCK, norms, scales, queries->margins[q], queries->scales[q], list->floor);
        for (rest &= (1u << count) - 1; rest; rest &= rest - 1) {
            int t = __builtin_ctz(rest);
            float dot = (float)dot_int8(rows[t], (const int16_t *)queries->data + q * padded, width);
            float score = dot * (scales[t] * queries->scales[q]);
            list->score[list->count] = score;
            list->row[list->count] = (int32_t)(base + t);
            list->count += score > list->floor;
        }
        if (list->count > CAPACITY(k) - BLOCK) drop_low(list, k);
    }
    return 1;
}

#endif
#endif
