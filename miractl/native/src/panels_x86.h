/* The panel kernels of one x86 instruction set. Included by kernels_x86.c for each, with SET (its
 * target attribute), NAME(stem) (stem_avx2 or stem_vnni) and TILE (most tokens of a kernel): only
 * the dot products differ. */

SET INLINE void NAME(i8)(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                         float (*y)[PANEL], const int group, const int tokens)
{
    __m256 acc[MAX_TILE];
    __m256i d[MAX_TILE];
    EACH_TOKEN acc[t] = _mm256_setzero_ps();
    for (int g = 0; g < columns / group; g++) {
        prefetch_scales(scales);
        NAME(i8_dots)(codes, x, g * group, group, tokens, d);
        __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)scales));
        EACH_TOKEN acc[t] = add_group(acc[t], d[t], scale, x + t, g);
        codes += group * PANEL;
        scales += PANEL * sizeof(uint16_t);
    }
    EACH_TOKEN _mm256_storeu_ps(y[t], acc[t]);
}

SET INLINE void NAME(i4k)(const uint8_t *codes, const uint8_t *scales, int columns, const token *x,
                          float (*y)[PANEL], const int group, const int tokens)
{
    __m256 acc[MAX_TILE];
    __m256i d[MAX_TILE];
    __m256 row_scale = _mm256_loadu_ps((const float *)scales);
    __m256 row_offset = _mm256_loadu_ps((const float *)scales + PANEL);
    scales += I4K_HEAD;
    EACH_TOKEN acc[t] = _mm256_setzero_ps();
    for (int g = 0; g < columns / group; g++) {
        prefetch(codes);
        prefetch(codes + 64);
        prefetch_scales(scales);
        NAME(i4k_dots)(codes, x, g * group, tokens, d);
        __m256 scale = scaled_bytes(scales, row_scale);
        __m256 offset = scaled_bytes(scales + PANEL, row_offset);
        EACH_TOKEN {
            acc[t] = add_group(acc[t], d[t], scale, x + t, g);
            acc[t] = add_offset(acc[t], offset, x + t, g);
        }
        codes += group * PANEL / 2;
        scales += 2 * PANEL;
    }
    EACH_TOKEN _mm256_storeu_ps(y[t], acc[t]);
}

SET static void NAME(quantize_token)(const float *x, int columns, int group, int format,
                                     void *codes, float *scale, float *offset)
{
    quantize_token_body(x, columns, group, format, codes, scale, offset);
}

SET static void NAME(activate)(const mira_expert *e, float *gate, float *up,
                               const float *gate_bias, const float *up_bias, int n)
{
    activate_body(e, gate, up, gate_bias, up_bias, n);
}

/* One function for each group and number of tokens: with both constant the loops unroll. */
#define KERNEL(kind, group, tokens)                                                               \
    SET static void NAME(kind##_##group##_##tokens)(const uint8_t *codes, const uint8_t *scales,  \
                                                    int columns, const token *x,                  \
                                                    float (*y)[PANEL])                            \
    {                                                                                             \
        NAME(kind)(codes, scales, columns, x, y, group, tokens);                                  \
    }
#define KERNELS_4(kind, group)                                                                    \
    KERNEL(kind, group, 1)                                                                        \
    KERNEL(kind, group, 2)                                                                        \
    KERNEL(kind, group, 3)                                                                        \
    KERNEL(kind, group, 4)
#define KERNELS_8(kind, group)                                                                    \
    KERNELS_4(kind, group)                                                                        \
    KERNEL(kind, group, 5)                                                                        \
    KERNEL(kind, group, 6)                                                                        \
    KERNEL(kind, group, 7)                                                                        \
    KERNEL(kind, group, 8)
#define LIST_4(kind, group)                                                                       \
    NAME(kind##_##group##_1), NAME(kind##_##group##_2), NAME(kind##_##group##_3),                 \
        NAME(kind##_##group##_4)
#define LIST_8(kind, group)                                                                       \
    LIST_4(kind, group), NAME(kind##_##group##_5), NAME(kind##_##group##_6),                      \
        NAME(kind##_##group##_7), NAME(kind##_##group##_8)

#if TILE == 4
#define KERNELS KERNELS_4
#define LIST LIST_4
#else
#define KERNELS KERNELS_8
#define LIST LIST_8
#endif

KERNELS(i4k, 32)
KERNELS(i8, 32)
KERNELS(i8, 64)
KERNELS(i8, 128)

const isa NAME(isa) = {
    .tile = TILE,
    .panel = {[I4K_32] = {LIST(i4k, 32)},
              [I8_32] = {LIST(i8, 32)},
              [I8_64] = {LIST(i8, 64)},
              [I8_128] = {LIST(i8, 128)}},
    .quantize_token = NAME(quantize_token),
    .activate = NAME(activate),
    .quantize_panel = quantize_panel,
};

#undef KERNEL
#undef KERNELS_4
#undef KERNELS_8
#undef LIST_4
#undef LIST_8
#undef KERNELS
#undef LIST
#undef SET
#undef NAME
#undef TILE
