/* The integer products with AVX2. products.h says what they do. */
#include <immintrin.h>
#define ROWS 2 /* two rows with four queries: more sums do not fit into sixteen registers */

static inline __m128i four_totals(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

__attribute__((noinline)) static void dots_int8(const int8_t *const *rows, const int16_t *queries, int64_t width,
                                                int64_t padded, float *out) {
    const int8_t *row0 = rows[0], *row1 = rows[1];
    const int16_t *q0 = queries, *q1 = q0 + padded, *q2 = q1 + padded, *q3 = q2 + padded;
    __m256i zero = _mm256_setzero_si256();
    __m256i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    int64_t i = 0;
#define ADD(index)                                                                   \
    do {                                                                             \
        __m256i q = _mm256_load_si256((const __m256i *)(q##index + i));              \
        IN_REGISTER(q);                                                              \
        a##index = _mm256_add_epi32(a##index, _mm256_madd_epi16(x, q));              \
        b##index = _mm256_add_epi32(b##index, _mm256_madd_epi16(y, q));              \
    } while (0)
    for (; i + 16 <= width; i += 16) {
        __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row0 + i)));
        __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row1 + i)));
        ADD(0); ADD(1); ADD(2); ADD(3);
    }
#undef ADD
    int32_t first[QUERIES], second[QUERIES];
    _mm_storeu_si128((__m128i *)first, four_totals(a0, a1, a2, a3));
    _mm_storeu_si128((__m128i *)second, four_totals(b0, b1, b2, b3));
    for (; i < width; i++)
        for (int q = 0; q < QUERIES; q++) {
            first[q] += row0[i] * queries[q * padded + i];
            second[q] += row1[i] * queries[q * padded + i];
        }
    for (int q = 0; q < QUERIES; q++) {
        out[q * BLOCK] = (float)first[q];
        out[q * BLOCK + 1] = (float)second[q];
    }
}

#define ADD(q)                                                                                           \
    do {                                                                                                 \
        __m256i four = _mm256_set1_epi32(*(const int32_t *)(query##q + i));                              \
        sum##q = _mm256_add_epi32(sum##q, _mm256_madd_epi16(_mm256_maddubs_epi16(x, four), ones));       \
    } while (0)
#define LOOP(body)                                                                \
    for (int64_t i = 0; i < dims; i += INTERLEAVED) {                             \
        __m256i x = _mm256_loadu_si256((const __m256i *)(codes + i * BLOCK));     \
        body                                                                      \
    }
static inline void dots_block(const uint8_t *codes, const int8_t *const *queries, int count, int64_t dims,
                              int32_t *out) {
    const int8_t *query0 = queries[0], *query1 = queries[count > 1], *query2 = queries[count > 2 ? 2 : 0];
    const int8_t *query3 = queries[count > 3 ? 3 : 0];
    __m256i ones = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    __m256i *sums = (__m256i *)out;
    __m256i sum0 = _mm256_loadu_si256(sums), sum1 = count > 1 ? _mm256_loadu_si256(sums + 1) : zero;
    __m256i sum2 = count > 2 ? _mm256_loadu_si256(sums + 2) : zero;
    __m256i sum3 = count > 3 ? _mm256_loadu_si256(sums + 3) : zero;
    if (count == 1) LOOP(ADD(0);)
    else if (count == 2) LOOP(ADD(0); ADD(1);)
    else LOOP(ADD(0); ADD(1); ADD(2); ADD(3);)
    _mm256_storeu_si256(sums, sum0);
    if (count > 1) _mm256_storeu_si256(sums + 1, sum1);
    if (count > 2) _mm256_storeu_si256(sums + 2, sum2);
    if (count > 3) _mm256_storeu_si256(sums + 3, sum3);
}
#undef LOOP
#undef ADD

static inline unsigned above(const int32_t *sums, int32_t floor) {
    __m256i greater = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)sums), _mm256_set1_epi32(floor));
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(greater));
}
