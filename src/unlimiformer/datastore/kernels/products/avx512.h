/* The integer products with AVX-512 and its VNNI instructions, which multiply and add in one step and, like additions
 * of 32 bits, keep exact integers. products.h says what they do. */
#include <immintrin.h>
#define ROWS 4
#define HAS_UPPER 1

static inline __mmask64 first_bits(int64_t count) { return count < 64 ? (1ull << count) - 1 : ~0ull; }

/* sum += x * y. The intrinsics would do, but gcc then copies every sum to another register and back. */
#define DOT_INT16(sum, x, y) __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))

/* The sums of the sixteen numbers of each of four vectors. */
static inline __m128i four_totals(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

__attribute__((noinline)) static void dots_int8(const int8_t *const *rows, const int16_t *queries, int64_t width,
                                                int64_t padded, float *out) {
    const int8_t *row0 = rows[0], *row1 = rows[1], *row2 = rows[2], *row3 = rows[3];
    const int16_t *q0 = queries, *q1 = q0 + padded, *q2 = q1 + padded, *q3 = q2 + padded;
    __m512i zero = _mm512_setzero_si512();
    __m512i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    __m512i c0 = zero, c1 = zero, c2 = zero, c3 = zero, d0 = zero, d1 = zero, d2 = zero, d3 = zero;
#define WIDEN(row) _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(within, row + i))
#define ADD(index)                                                \
    do {                                                          \
        __m512i q = _mm512_load_si512(q##index + i);              \
        DOT_INT16(a##index, x0, q);                             \
        DOT_INT16(b##index, x1, q);                             \
        DOT_INT16(c##index, x2, q);                             \
        DOT_INT16(d##index, x3, q);                             \
    } while (0)
    for (int64_t i = 0; i < width; i += 32) {
        __mmask32 within = (__mmask32)first_bits(width - i);
        __m512i x0 = WIDEN(row0), x1 = WIDEN(row1), x2 = WIDEN(row2), x3 = WIDEN(row3);
        ADD(0); ADD(1); ADD(2); ADD(3);
    }
#undef ADD
#undef WIDEN
    _mm_storeu_ps(out, _mm_cvtepi32_ps(four_totals(a0, b0, c0, d0)));
    _mm_storeu_ps(out + BLOCK, _mm_cvtepi32_ps(four_totals(a1, b1, c1, d1)));
    _mm_storeu_ps(out + 2 * BLOCK, _mm_cvtepi32_ps(four_totals(a2, b2, c2, d2)));
    _mm_storeu_ps(out + 3 * BLOCK, _mm_cvtepi32_ps(four_totals(a3, b3, c3, d3)));
}

/* sum += x * y for unsigned x and signed y of eight bits */
#define DOT_INT8(sum, x, y) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))

__attribute__((noinline)) static void dots_upper(const int8_t *const *rows, const int8_t *queries, const int32_t *offsets,
                                                 int64_t width, int64_t padded, float *out) {
    const int8_t *row0 = rows[0], *row1 = rows[1], *row2 = rows[2], *row3 = rows[3];
    const int8_t *q0 = queries, *q1 = q0 + padded, *q2 = q1 + padded, *q3 = q2 + padded;
    __m512i zero = _mm512_setzero_si512(), unsign = _mm512_set1_epi8(-128);
    __m512i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    __m512i c0 = zero, c1 = zero, c2 = zero, c3 = zero, d0 = zero, d1 = zero, d2 = zero, d3 = zero;
#define LOAD(row) _mm512_xor_si512(_mm512_maskz_loadu_epi8(within, row + i), unsign)
#define ADD(index)                                          \
    do {                                                    \
        __m512i q = _mm512_load_si512(q##index + i);        \
        DOT_INT8(a##index, x0, q);                          \
        DOT_INT8(b##index, x1, q);                          \
        DOT_INT8(c##index, x2, q);                          \
        DOT_INT8(d##index, x3, q);                          \
    } while (0)
    for (int64_t i = 0; i < width; i += 64) {
        __mmask64 within = first_bits(width - i);
        __m512i x0 = LOAD(row0), x1 = LOAD(row1), x2 = LOAD(row2), x3 = LOAD(row3);
        ADD(0); ADD(1); ADD(2); ADD(3);
    }
#undef ADD
#undef LOAD
#define STORE(index)                                                                                \
    _mm_storeu_ps(out + index * BLOCK,                                                              \
                  _mm_cvtepi32_ps(_mm_sub_epi32(four_totals(a##index, b##index, c##index, d##index), \
                                                _mm_set1_epi32(offsets[index]))))
    STORE(0); STORE(1); STORE(2); STORE(3);
#undef STORE
}

static inline void norms_int8(const int8_t *const *rows, int64_t width, float *out) {
    __m512i sums[ROWS] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int64_t i = 0; i < width; i += 64)
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            __m512i x = _mm512_abs_epi8(_mm512_maskz_loadu_epi8(first_bits(width - i), rows[r] + i));
            DOT_INT8(sums[r], x, x);
        }
    _mm_storeu_ps(out, _mm_sqrt_ps(_mm_cvtepi32_ps(four_totals(sums[0], sums[1], sums[2], sums[3]))));
}

static inline int32_t dot_int8(const int8_t *row, const int16_t *query, int64_t width) {
    __m512i even = _mm512_setzero_si512(), odd = even;
    for (int64_t i = 0; i < width; i += 64) {
        __m512i x = _mm512_maskz_loadu_epi8(first_bits(width - i), row + i);
        __m512i low = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(x));
        __m512i high = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(x, 1));
        DOT_INT16(even, low, _mm512_load_si512(query + i));
        DOT_INT16(odd, high, _mm512_load_si512(query + i + 32));
    }
    return _mm512_reduce_add_epi32(_mm512_add_epi32(even, odd));
}

static inline unsigned may_exceed(const float *rough, const float *norms, const float *scales, float margin, float unit,
                                  float floor) {
    __m256 sums = _mm256_fmadd_ps(_mm256_loadu_ps(rough), _mm256_set1_ps(256),
                                  _mm256_mul_ps(_mm256_loadu_ps(norms), _mm256_set1_ps(margin)));
    __m256 factors = _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_set1_ps(unit));
    return _mm256_cmp_ps_mask(_mm256_mul_ps(sums, factors), _mm256_set1_ps(floor), _CMP_NLE_UQ);
}

static inline void dots_block(const uint8_t *codes, const int8_t *const *queries, int count, int64_t dims,
                              int32_t *out) {
    __m256i sums[QUERY_GROUP];
    for (int q = 0; q < count; q++) sums[q] = _mm256_loadu_si256((const __m256i *)(out + q * BLOCK));
#define ADD(q) sums[q] = _mm256_dpbusd_epi32(sums[q], x, _mm256_set1_epi32(*(const int32_t *)(queries[q] + i)))
#define LOOP(body)                                                                \
    for (int64_t i = 0; i < dims; i += INTERLEAVED) {                             \
        __m256i x = _mm256_loadu_si256((const __m256i *)(codes + i * BLOCK));     \
        body                                                                      \
    }
    if (count == 1) LOOP(ADD(0);)
    else if (count == 2) LOOP(ADD(0); ADD(1);)
    else if (count == 3) LOOP(ADD(0); ADD(1); ADD(2);)
    else LOOP(ADD(0); ADD(1); ADD(2); ADD(3);)
#undef LOOP
#undef ADD
    for (int q = 0; q < count; q++) _mm256_storeu_si256((__m256i *)(out + q * BLOCK), sums[q]);
}

static inline unsigned above(const int32_t *sums, int32_t floor) {
    return _mm256_cmpgt_epi32_mask(_mm256_loadu_si256((const __m256i *)sums), _mm256_set1_epi32(floor));
}
