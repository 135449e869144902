/* The integer products with NEON and its dot product. products.h says what they do. */
#include <arm_neon.h>
#define ROWS 2 /* two rows with four queries: sixteen sums, half of the registers */

static inline void dots_int8(const int8_t *const *rows, const int16_t *queries, int64_t width, int64_t padded,
                             float *out) {
    int32x4_t low[QUERIES][ROWS], high[QUERIES][ROWS];
    memset(low, 0, sizeof low);
    memset(high, 0, sizeof high);
    int64_t i = 0;
    for (; i + 8 <= width; i += 8) {
        int16x8_t x[ROWS];
        for (int r = 0; r < ROWS; r++) x[r] = vmovl_s8(vld1_s8(rows[r] + i));
        for (int q = 0; q < QUERIES; q++) {
            int16x8_t y = vld1q_s16(queries + q * padded + i);
            for (int r = 0; r < ROWS; r++) {
                low[q][r] = vmlal_s16(low[q][r], vget_low_s16(x[r]), vget_low_s16(y));
                high[q][r] = vmlal_high_s16(high[q][r], x[r], y);
            }
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int r = 0; r < ROWS; r++) {
            int32_t sum = vaddvq_s32(vaddq_s32(low[q][r], high[q][r]));
            for (int64_t j = i; j < width; j++) sum += rows[r][j] * queries[q * padded + j];
            out[q * BLOCK + r] = (float)sum;
        }
}

static inline void dots_block(const uint8_t *codes, const int8_t *const *queries, int count, int64_t dims,
                              int32_t *out) {
    for (int q = 0; q < count; q++) {
        int32x4_t first = vld1q_s32(out + q * BLOCK), last = vld1q_s32(out + q * BLOCK + 4);
        for (int64_t i = 0; i < dims; i += INTERLEAVED) { /* codes have 7 bits: they are the same as signed numbers */
            const int8_t *x = (const int8_t *)codes + i * BLOCK;
            int8x16_t four = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(queries[q] + i)));
            first = vdotq_s32(first, vld1q_s8(x), four);
            last = vdotq_s32(last, vld1q_s8(x + 16), four);
        }
        vst1q_s32(out + q * BLOCK, first);
        vst1q_s32(out + q * BLOCK + 4, last);
    }
}

static inline unsigned above(const int32_t *sums, int32_t floor) {
    static const uint32_t bits[BLOCK] = {1, 2, 4, 8, 16, 32, 64, 128};
    int32x4_t low = vdupq_n_s32(floor);
    uint32x4_t first = vandq_u32(vcgtq_s32(vld1q_s32(sums), low), vld1q_u32(bits));
    uint32x4_t last = vandq_u32(vcgtq_s32(vld1q_s32(sums + 4), low), vld1q_u32(bits + 4));
    return vaddvq_u32(vorrq_u32(first, last));
}
