/* The integer products in plain C, which the compiler vectorises as well as it can. products.h says what they do. */
#define ROWS 2

static inline void dots_int8(const int8_t *const *rows, const int16_t *queries, int64_t width, int64_t padded,
                             float *out) {
    for (int q = 0; q < QUERIES; q++)
        for (int r = 0; r < ROWS; r++) {
            int32_t sum = 0;
            for (int64_t i = 0; i < width; i++) sum += rows[r][i] * queries[q * padded + i];
            out[q * BLOCK + r] = (float)sum;
        }
}

static inline void dots_block(const uint8_t *codes, const int8_t *const *queries, int count, int64_t dims,
                              int32_t *out) {
    for (int q = 0; q < count; q++)
        for (int64_t i = 0; i < dims; i += INTERLEAVED)
            for (int t = 0; t < BLOCK; t++)
                for (int f = 0; f < INTERLEAVED; f++)
                    out[q * BLOCK + t] += codes[i * BLOCK + t * INTERLEAVED + f] * queries[q][i + f];
}

static inline unsigned above(const int32_t *sums, int32_t floor) {
    unsigned bits = 0;
    for (int t = 0; t < BLOCK; t++) bits |= (unsigned)(sums[t] > floor) << t;
    return bits;
}
