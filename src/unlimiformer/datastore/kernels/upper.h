/* The first look at int8 rows, with the upper eight bits of the queries, at half the price of the whole products.
 *
 * query = 256 * upper + rest, so that by the Cauchy-Schwarz inequality a product differs from 256 times that of the upper
 * bits by at most |rest| |row|. Rows that this leaves below the floor are skipped; the others are scored as ever, so that
 * what is found stays the same. Only for instruction sets that multiply bytes faster than 16-bit numbers.
 */
#ifndef UPPER_H
#define UPPER_H
#include "queries.h"
#if HAS_UPPER

/* Offers the rows [base, base + count), which begin at `rows`, to the lists of all queries. Returns 0, with nothing done,
 * unless every list has a floor. dots (padded_count, BLOCK): scratch. */
static int scan_upper(const int8_t *const *rows, const float *scales, const PreparedQueries *queries, int64_t base,
                      int64_t count, int64_t width, int64_t k, Ahead ahead, float *dots, BestList *lists) {
    int64_t padded = queries->padded_width;
    float norms[BLOCK];
    for (int64_t q = 0; q < queries->count; q++)
        if (!(lists[q].floor > -INFINITY)) return 0;
    for (int64_t a = 0; a < BLOCK; a += ROWS) {
        norms_int8(rows + a, width, norms + a);
        for (int64_t q = 0; q < queries->padded_count; q += QUERIES) {
            fetch(&ahead);
            dots_upper(rows + a, queries->upper + q * padded, queries->offsets + q, width, padded, dots + q * BLOCK + a);
        }
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
