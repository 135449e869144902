/* The two loops of the exact store that decide its speed on a CPU.
 *
 * scan: dot products of every stored row with every query, keeping each query's K best as it goes, so that no
 *       (queries x rows) array of scores ever exists.
 * mix:  weighted sums of chosen rows.
 *
 * Rows are float32, bfloat16 or int8 with one scale a row. Queries, scores and sums are float32, except that int8 rows
 * are scanned with int16 queries, which multiplies twice as many numbers an instruction. The work is cut in parts, run in
 * parallel where OpenMP is there. This file knows nothing of Python, heads or models.
 */
#include "topk.h"

#define QUERIES 4 /* queries scored at a time; their number is padded to a multiple of this */
#define PAD 16    /* widths are padded to a multiple of this */

/* The `keep` best of one query's lists, one list a part; slots that no row fills get -inf and row 0. */
static void join_parts(best_list *lists, int64_t parts, int64_t step, int64_t keep, float *out_score, int64_t *out_row) {
    merge_parts(lists, parts, step, keep);
    for (int64_t i = 0; i < keep; i++) {
        int filled = i < lists->count;
        out_score[i] = filled ? lists->score[i] : -INFINITY;
        out_row[i] = filled ? lists->row[i] : 0;
    }
}

/* ---- dot products ---- */

static void expand(const char *source, int kind, int64_t width, float *out) {
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
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* rows (BLOCK, padded) x queries (QUERIES, padded), both float32 -> out (QUERIES, BLOCK); 4 x 2 sums in registers */
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

/* Two int8 rows x QUERIES int16 queries -> out[query * BLOCK] and out[query * BLOCK + 1]. The queries' range is such that
 * no 32-bit sum overflows; what lies beyond `width` in the queries is zero. */
#if defined(__AVX2__)
static inline __m128i four_totals(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

__attribute__((noinline)) static void dots_int8(const int8_t *row0, const int8_t *row1, const int16_t *queries,
                                                int64_t width, int64_t padded, float *out) {
    const int16_t *q0 = queries, *q1 = q0 + padded, *q2 = q1 + padded, *q3 = q2 + padded;
    __m256i zero = _mm256_setzero_si256();
    __m256i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    int64_t i = 0;
#define ADD(number)                                                                  \
    do {                                                                             \
        __m256i q = _mm256_load_si256((const __m256i *)(q##number + i));             \
        IN_REGISTER(q);                                                              \
        a##number = _mm256_add_epi32(a##number, _mm256_madd_epi16(x, q));            \
        b##number = _mm256_add_epi32(b##number, _mm256_madd_epi16(y, q));            \
    } while (0)
    for (; i + 16 <= width; i += 16) {
        __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row0 + i)));
        __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row1 + i)));
        ADD(0); ADD(1); ADD(2); ADD(3);
    }
#undef ADD
    int32_t first[4], second[4];
    _mm_storeu_si128((__m128i *)first, four_totals(a0, a1, a2, a3));
    _mm_storeu_si128((__m128i *)second, four_totals(b0, b1, b2, b3));
    for (; i < width; i++) {
        for (int b = 0; b < QUERIES; b++) {
            first[b] += row0[i] * queries[b * padded + i];
            second[b] += row1[i] * queries[b * padded + i];
        }
    }
    for (int b = 0; b < QUERIES; b++) {
        out[b * BLOCK] = (float)first[b];
        out[b * BLOCK + 1] = (float)second[b];
    }
}
#else
static void dots_int8(const int8_t *row0, const int8_t *row1, const int16_t *queries, int64_t width, int64_t padded,
                      float *out) {
    for (int b = 0; b < QUERIES; b++) {
        const int16_t *q = queries + b * padded;
        int32_t first = 0, second = 0;
        for (int64_t i = 0; i < width; i++) {
            first += row0[i] * q[i];
            second += row1[i] * q[i];
        }
        out[b * BLOCK] = (float)first;
        out[b * BLOCK + 1] = (float)second;
    }
}
#endif

/* ---- scan ---- */

/* Zeros that start at a cache line: a load that straddles two costs double. `count` is a multiple of 16. */
static float *zeros(int64_t count) {
    float *made = aligned_alloc(64, (size_t)count * sizeof *made);
    return made ? memset(made, 0, (size_t)count * sizeof *made) : NULL;
}

/* Queries (count, width) padded with zeros to groups and lanes; for int8 rows as int16, as fine as 32-bit sums allow,
 * with a scale each. */
static void prepare_queries(const float *queries, int64_t count, int64_t width, int64_t padded, int kind, void *out,
                            float *scales) {
    for (int64_t q = 0; q < count; q++) {
        const float *from = queries + q * width;
        if (kind != INT8) {
            memcpy((float *)out + q * padded, from, (size_t)width * sizeof(float));
            scales[q] = 1.0f;
            continue;
        }
        scales[q] = whole_query(from, width, (int16_t *)out + q * padded);
    }
}

/* Fills one list a query with the `keep` best of rows [start, stop), and possibly some more. */
static void scan_part(const char *states, int kind, const float *row_scales, int64_t width, int64_t start, int64_t stop,
                      const void *queries, const float *query_scales, int64_t count_queries, int64_t padded,
                      int64_t keep, float *scratch, best_list *lists) {
    int64_t stride = bytes_of(kind, width), rounded = (count_queries + QUERIES - 1) / QUERIES * QUERIES;
    float *dots = scratch + BLOCK * padded; /* (rounded, BLOCK) */
    for (int64_t base = start; base < stop; base += BLOCK) {
        int64_t here = stop - base < BLOCK ? stop - base : BLOCK;
        float scale[BLOCK] = {0};
        for (int64_t a = 0; a < here; a++) {
            scale[a] = row_scales ? row_scales[base + a] : 1.0f;
            if (kind != INT8) expand(states + (base + a) * stride, kind, width, scratch + a * padded);
        }
        if (kind != INT8) {
            for (int64_t q = 0; q < rounded; q += QUERIES)
                dots_float(scratch, (const float *)queries + q * padded, padded, dots + q * BLOCK);
        } else { /* every query for two rows before the next two: the rows are read from memory in one even stream */
            for (int64_t a = 0; a < here; a += 2) {
                const int8_t *row = (const int8_t *)states + (base + a) * stride, *next = a + 1 < here ? row + stride : row;
                for (int64_t q = 0; q < rounded; q += QUERIES)
                    dots_int8(row, next, (const int16_t *)queries + q * padded, width, padded, dots + q * BLOCK + a);
            }
        }
        for (int64_t q = 0; q < count_queries; q++) {
            float *scores = dots + q * BLOCK;
            for (int t = 0; t < BLOCK; t++) scores[t] *= scale[t] * query_scales[q];
            offer(&lists[q], scores, base, here, keep);
        }
    }
}

/* The `keep` best rows of each of `queries` (count_queries, width): out_score and out_row (count_queries, keep).
 * Returns 0, or -1 when there is no memory. */
int scan(const char *states, int kind, const float *row_scales, int64_t width, int64_t rows, const float *queries,
         int64_t count_queries, int64_t keep, int64_t parts, float *out_score, int64_t *out_row) {
    int64_t capacity = CAPACITY(keep), all = parts * count_queries;
    int64_t padded = (width + PAD - 1) / PAD * PAD, groups = (count_queries + QUERIES - 1) / QUERIES;
    best_list *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score);
    int32_t *row = malloc((size_t)(all * capacity) * sizeof *row);
    int64_t room = BLOCK * (padded + groups * QUERIES); /* of one part: expanded rows, then scores */
    float *scratch = zeros(parts * room), *prepared = zeros(groups * QUERIES * padded);
    float *query_scales = malloc((size_t)count_queries * sizeof *query_scales);
    int failed = !lists || !score || !row || !scratch || !prepared || !query_scales;
    if (!failed) {
        prepare_queries(queries, count_queries, width, padded, kind, prepared, query_scales);
        for (int64_t i = 0; i < all; i++) lists[i] = (best_list){score + i * capacity, row + i * capacity, 0, -INFINITY};
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t p = 0; p < parts; p++)
            scan_part(states, kind, row_scales, width, rows * p / parts, rows * (p + 1) / parts, prepared, query_scales,
                      count_queries, padded, keep, scratch + p * room, lists + p * count_queries);
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t q = 0; q < count_queries; q++)
            join_parts(lists + q, parts, count_queries, keep, out_score + q * keep, out_row + q * keep);
    }
    free(lists); free(score); free(row); free(scratch); free(prepared); free(query_scales);
    return failed ? -1 : 0;
}

/* ---- mix ---- */

/* sum[i] += w0 * x0[i] + … for four rows at a time, so that the sum is read and written a quarter as often */
#define ADD_FOUR(TYPE, VALUE)                                                                                   \
    do {                                                                                                        \
        const TYPE *x0 = (const TYPE *)at[0], *x1 = (const TYPE *)at[1];                                        \
        const TYPE *x2 = (const TYPE *)at[2], *x3 = (const TYPE *)at[3];                                        \
        for (int64_t i = 0; i < width; i++)                                                                     \
            sum[i] += w[0] * VALUE(x0[i]) + w[1] * VALUE(x1[i]) + w[2] * VALUE(x2[i]) + w[3] * VALUE(x3[i]);    \
    } while (0)
#define AS_IS(x) ((float)(x))

/* out (count, width): for each query, the sum over its `keep` rows of weight x row. */
void mix(const char *states, int kind, const float *scales, int64_t width, const int64_t *row, const float *weight,
         int64_t count, int64_t keep, int64_t parts, float *out) {
    int64_t stride = bytes_of(kind, width);
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int64_t q = 0; q < count; q++) {
        float *restrict sum = out + q * width;
        const int64_t *rows = row + q * keep;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t k = 0; k < keep; k += 4) {
            const char *at[4];
            float w[4];
            for (int64_t t = 0; t < 4; t++) {
                int64_t r = k + t < keep ? rows[k + t] : rows[k];
                at[t] = states + r * stride;
                w[t] = k + t < keep ? weight[q * keep + k + t] * (scales ? scales[r] : 1.0f) : 0.0f;
                if (k + t + 8 < keep)
                    for (int64_t i = 0; i < stride; i += 64)
                        __builtin_prefetch(states + rows[k + t + 8] * stride + i);
            }
            if (kind == FLOAT32) ADD_FOUR(float, AS_IS);
            else if (kind == BFLOAT16) ADD_FOUR(uint16_t, from_bfloat16);
            else ADD_FOUR(int8_t, AS_IS);
        }
    }
}
