/* The inner loops on integers, one implementation for each instruction set; all give the same integers.
 *
 * dots_int8:  products of ROWS int8 rows with QUERIES int16 queries (QUERIES, padded): out[query * BLOCK + row].
 *             quantize_query chose the range of the queries such that no 32-bit sum overflows. They start at the start of
 *             a cache line and are zero beyond `width`; rows must not be read there.
 * dots_block: adds to out (count, BLOCK) the products of one block of codes with `count` <= QUERY_GROUP queries of
 *             `dims` codes.
 * above:      which of BLOCK sums are above a floor, as bits.
 *
 * With HAS_UPPER, also for the first look of upper.h:
 * dots_upper: like dots_int8 with queries of eight bits, padded to whole cache lines; `offsets`: 128 x the sum of each.
 * norms_int8: Euclidean norms of ROWS rows.
 * dot_int8:   the product of one row with one query of 16 bits.
 * may_exceed: for which of BLOCK rows (256 x rough + margin x norm) x scale x unit is not below the floor, as bits.
 *
 * ROWS divides BLOCK. The compiler's flags decide which one is compiled: compile.py builds all that fit the processor's
 * family into one library, where the names of functions end with the instruction set's.
 */
#ifndef PRODUCTS_H
#define PRODUCTS_H
#include "../topk.h"

#define QUERIES 4     /* queries scored at a time; their count is padded to a multiple of this */
#define PAD 64        /* widths are padded to a multiple of this */
#define INTERLEAVED 4 /* directions whose codes lie together */
#define QUERY_GROUP 4 /* queries that share one pass over a block */

#if defined(__AVX512VNNI__)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "neon.h"
#else
#include "scalar.h"
#endif
#ifndef HAS_UPPER
#define HAS_UPPER 0
#endif

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

#endif
