/* AVX2, and AVX512-VNNI, in vectors of 256 bits but for int4 of one token.
 *
 * A panel of eight rows is one vector of eight sums. Every 32 bytes of codes hold four columns
 * (I8) or twice four (I4K) of the eight rows: codes and the token's four codes, repeated, are
 * multiplied and added in groups of four by one or two instructions.
 */
#if defined(__x86_64__)

#include <immintrin.h>

#include "weights.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define VNNI __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")))

/* Loops over the tokens of a tile are unrolled, so that a token's sums stay in registers. */
#define EACH_TOKEN _Pragma("GCC unroll 8") for (int t = 0; t < tokens; t++)

/* Up to a dozen tokens memory is the limit, and asking for bytes of the next page before the
 * processor's own prefetcher dares to is worth a tenth and more. So the second cache is asked for
 * what comes late, and the first for what comes soon: it asks for few things at a time, and what
 * comes late would push out others there. Where nothing is there to be fetched, nothing happens. */
#define SOON 512
#define LATE 3072

INLINE void prefetch(const uint8_t *codes)
{
    _mm_prefetch((const char *)codes + LATE, _MM_HINT_T1);
    _mm_prefetch((const char *)codes + SOON, _MM_HINT_T0);
}

INLINE void prefetch_scales(const uint8_t *scales)
{
    _mm_prefetch((const char *)scales + SOON / 8, _MM_HINT_T0);
}

AVX2 INLINE __m256i load(const void *from)
{
    return _mm256_loadu_si256(from);
}

/* Sixteen int8 as int16. */
AVX2 INLINE __m256i load_wide(const uint8_t *from)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
}

/* Four codes of a token, repeated. */
AVX2 INLINE __m256i repeat_int8(const int8_t *codes)
{
    int32_t four;
    memcpy(&four, codes, sizeof four);
    return _mm256_set1_epi32(four);
}

AVX2 INLINE __m256i repeat_int16(const int16_t *codes)
{
    int64_t four;
    memcpy(&four, codes, sizeof four);
    return _mm256_set1_epi64x(four);
}

/* Sums of columns (0, 1) and (2, 3) of rows 0-3 and 4-7, to sums of rows 0-7. */
AVX2 INLINE __m256i row_sums(__m256i upper, __m256i lower)
{
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(upper, lower), 0xd8);
}

/* Eight unsigned bytes times eight floats. */
AVX2 INLINE __m256 scaled_bytes(const uint8_t *bytes, __m256 by)
{
    __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wide), by);
}

AVX2 INLINE __m256 add_group(__m256 acc, __m256i d, __m256 scale, const token *x, int g)
{
    __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(x->scale[g]));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), both, acc);
}

AVX2 INLINE __m256 add_offset(__m256 acc, __m256 offset, const token *x, int g)
{
    return _mm256_fmadd_ps(offset, _mm256_set1_ps(x->offset[g]), acc);
}

/* d[t] += codes * x[t] over one group. */
AVX2 INLINE void i8_dots_avx2(const uint8_t *codes, const token *x, int at, const int group,
                              const int tokens, __m256i *d)
{
    __m256i upper[MAX_TILE], lower[MAX_TILE];
    EACH_TOKEN upper[t] = lower[t] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (int k = 0; k < group; k += 4, codes += 32) {
        __m256i w0 = load_wide(codes), w1 = load_wide(codes + 16);
        if (k % 8 == 0)
            prefetch(codes);
        EACH_TOKEN {
            __m256i q = repeat_int16((const int16_t *)x[t].codes + at + k);
            upper[t] = _mm256_add_epi32(upper[t], _mm256_madd_epi16(w0, q));
            lower[t] = _mm256_add_epi32(lower[t], _mm256_madd_epi16(w1, q));
        }
    }
    EACH_TOKEN d[t] = row_sums(upper[t], lower[t]);
}

/* Of one token a sum waits for the one before it, so every other one has sums of its own: whole
 * numbers, which are the same in any order. For more tokens there would not be the registers. */
VNNI INLINE void i8_dots_vnni(const uint8_t *codes, const token *x, int at, const int group,
                              const int tokens, __m256i *d)
{
    __m256i upper[MAX_TILE], lower[MAX_TILE], odd_upper[MAX_TILE], odd_lower[MAX_TILE];
    EACH_TOKEN upper[t] = lower[t] = odd_upper[t] = odd_lower[t] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int k = 0; k < group; k += 8, codes += 64) {
        __m256i w0 = load_wide(codes), w1 = load_wide(codes + 16);
        __m256i w2 = load_wide(codes + 32), w3 = load_wide(codes + 48);
        prefetch(codes);
        EACH_TOKEN {
            __m256i q = repeat_int16((const int16_t *)x[t].codes + at + k);
            __m256i r = repeat_int16((const int16_t *)x[t].codes + at + k + 4);
            __m256i *next_upper = tokens == 1 ? odd_upper : upper;
            __m256i *next_lower = tokens == 1 ? odd_lower : lower;
            upper[t] = _mm256_dpwssd_epi32(upper[t], w0, q);
            lower[t] = _mm256_dpwssd_epi32(lower[t], w1, q);
            next_upper[t] = _mm256_dpwssd_epi32(next_upper[t], w2, r);
            next_lower[t] = _mm256_dpwssd_epi32(next_lower[t], w3, r);
        }
    }
    if (tokens == 1) {
        upper[0] = _mm256_add_epi32(upper[0], odd_upper[0]);
        lower[0] = _mm256_add_epi32(lower[0], odd_lower[0]);
    }
    EACH_TOKEN d[t] = row_sums(upper[t], lower[t]);
}

/* Sums of 8 products of at most 15 * 127 pairs fit int16: 8 * 2 * 15 * 127 = 30480. */
AVX2 INLINE void i4k_dots_avx2(const uint8_t *codes, const token *x, int at, const int tokens,
                               __m256i *d)
{
    const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum[MAX_TILE];
    EACH_TOKEN sum[t] = _mm256_setzero_si256();
#pragma GCC unroll 1 /* unrolled, GCC adds in another order and runs out of registers */
    for (int k = 0; k < I4K_GROUP; k += 8, codes += 32) {
        __m256i w = load(codes);
        __m256i w0 = _mm256_and_si256(w, low_half);
        __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(w, 4), low_half);
        EACH_TOKEN {
            const int8_t *q = (const int8_t *)x[t].codes + at + k;
            sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(w0, repeat_int8(q)));
            sum[t] = _mm256_add_epi16(sum[t], _mm256_maddubs_epi16(w1, repeat_int8(q + 4)));
        }
    }
    EACH_TOKEN d[t] = _mm256_madd_epi16(sum[t], ones);
}

/* Of one token, with as few instructions as there can be: twice the width, in which one load is
 * the codes of columns 0-3, 8-11 of all rows in its low halves of bytes, 4-7, 12-15 in its high. */
VNNI INLINE __m256i i4k_dot_vnni(const uint8_t *codes, const int8_t *x)
{
    const __m512i low_half = _mm512_set1_epi8(15);
    const __m512i two = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(2), 1);
    __m512i q = _mm512_castsi256_si512(load(x)), sum = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (int k = 0; k < I4K_GROUP / 4; k += 4, codes += 64) {
        __m512i w = _mm512_loadu_si512(codes);
        __m512i w0 = _mm512_and_si512(w, low_half);
        __m512i w1 = _mm512_and_si512(_mm512_srli_epi16(w, 4), low_half);
        __m512i first = _mm512_add_epi32(two, _mm512_set1_epi32(k));
        __m512i second = _mm512_add_epi32(two, _mm512_set1_epi32(k + 1));
        sum = _mm512_dpbusd_epi32(sum, w0, _mm512_permutexvar_epi32(first, q));
        sum = _mm512_dpbusd_epi32(sum, w1, _mm512_permutexvar_epi32(second, q));
    }
    return _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
}

VNNI INLINE void i4k_dots_vnni(const uint8_t *codes, const token *x, int at, const int tokens,
                               __m256i *d)
{
    const __m256i low_half = _mm256_set1_epi8(15);
    if (tokens == 1) {
        d[0] = i4k_dot_vnni(codes, (const int8_t *)x[0].codes + at);
        return;
    }
    EACH_TOKEN d[t] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int k = 0; k < I4K_GROUP; k += 8, codes += 32) {
        __m256i w = load(codes);
        __m256i w0 = _mm256_and_si256(w, low_half);
        __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(w, 4), low_half);
        EACH_TOKEN {
            const int8_t *q = (const int8_t *)x[t].codes + at + k;
            d[t] = _mm256_dpbusd_epi32(d[t], w0, repeat_int8(q));
            d[t] = _mm256_dpbusd_epi32(d[t], w1, repeat_int8(q + 4));
        }
    }
}

AVX2 static int quantize_panel(const mira_matrix *m, const float *w, uint8_t *codes,
                               uint8_t *scales, void *fits)
{
    return quantize_panel_body(m, w, codes, scales, fits);
}

/* With 16 registers a fifth token's sums would be spilled, with 32 a ninth's. */
#define SET AVX2
#define NAME(stem) stem##_avx2
#define TILE 4
#include "panels_x86.h"

#define SET VNNI
#define NAME(stem) stem##_vnni
#define TILE 8
#include "panels_x86.h"

#endif
