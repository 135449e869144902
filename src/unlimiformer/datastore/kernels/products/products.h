/* The inner loops on integers, one implementation for each instruction set; all give the same integers.
 *
 * dots_int8:  products of ROWS int8 rows with QUERIES int16 queries (QUERIES, padded): out[query * BLOCK + row].
 *             quantize_query chose the range of the queries such that no 32-bit sum overflows. They start at the start of
 *             a cache line and are zero beyond `width`; rows must not be read there.
 * dots_block: adds to out (count, BLOCK) the products of one block of codes with `count` <= QUERY_GROUP queries of
 *             `dims` codes.
 * above:      which of BLOCK sums are above a floor, as bits.
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

#endif
