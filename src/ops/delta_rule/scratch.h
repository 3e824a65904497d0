// What one thread of the CPU kernels works in. The same constructor lays it out and counts it.
//
// C = kDeltaChunk. Tiles of a chunk with n <= C tokens fill their first n (or 2n) rows; rows of
// [.., C] tiles are C long whatever n is, those of [.., dk] and [.., dv] tiles ldk and ldv.
#pragma once

#include "ops/delta_rule/delta_rule.h"

namespace fwpkm {

// Hands out pieces of a block, each aligned to 64 bytes; with a null base it only counts.
class DeltaScratch {
 public:
  static constexpr int64_t kAlign = 16;  // floats
  static int64_t rounded(int64_t count) { return (count + kAlign - 1) / kAlign * kAlign; }

  explicit DeltaScratch(float* base) : base_(base) {}
  float* take(int64_t count) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += rounded(count);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

// Decays and gates of one value head in a chunk, [C] each. Past the chunk's end gamma stays at its
// last value, so that whole vectors can be read.
//
// gamma is kept as a sum of two floats: differences of far decayed neighbours would otherwise lose
// what the recurrence, which exponentiates each g on its own, keeps.
struct DeltaGates {
  float *gamma, *gamma_low, *beta;
  float *e, *f;  // exp(gamma_i) and exp(gamma_last - gamma_i)

  explicit DeltaGates(DeltaScratch& scratch)
      : gamma(scratch.take(kDeltaChunk)),
        gamma_low(scratch.take(kDeltaChunk)),
        beta(scratch.take(kDeltaChunk)),
        e(scratch.take(kDeltaChunk)),
        f(scratch.take(kDeltaChunk)) {}
};

struct DeltaForwardScratch {
  int64_t ldk, ldv;
  DeltaGates gates;
  float* qk;    // [2n, dk]: normalised q above normalised k
  float* dots;  // [2n, C]: <q_i, k_j> above <k_i, k_j>
  float* p;     // [n, C]
  float* a;     // [n, C]
  float* y;     // [2n, dv]: Q S0 above K S0
  float* u;     // [n, dv]
  float* s;     // [group, dk, dv]
  int64_t size;

  DeltaForwardScratch(const DeltaSizes& n, float* base)
      : DeltaForwardScratch(n, DeltaScratch(base)) {}

 private:
  DeltaForwardScratch(const DeltaSizes& n, DeltaScratch scratch)
      : ldk(DeltaScratch::rounded(n.dk)),
        ldv(DeltaScratch::rounded(n.dv)),
        gates(scratch),
        qk(scratch.take(2 * kDeltaChunk * ldk)),
        dots(scratch.take(2 * kDeltaChunk * kDeltaChunk)),
        p(scratch.take(kDeltaChunk * kDeltaChunk)),
        a(scratch.take(kDeltaChunk * kDeltaChunk)),
        y(scratch.take(2 * kDeltaChunk * ldv)),
        u(scratch.take(kDeltaChunk * ldv)),
        s(scratch.take(n.group * n.matrix())),
        size(scratch.used()) {}
};

struct DeltaBackwardScratch {
  int64_t ldk, ldv;
  DeltaGates gates;
  float* qk;              // [2n, dk]: normalised q above normalised k
  float* norms;           // [2n]: 1 / sqrt(|q|^2 + eps) above the same of k
  float* dots;            // [2n, C]: <q_i, k_j> above <k_i, k_j>
  float* decay;           // [n, C]: D
  float* p;               // [n, C]
  float* a;               // [n, C]
  float* w;               // [n, dv]: v - e Y
  float* u;               // [n, dv]
  float* dor;             // [2n, dv]: dO above dR
  float* dor_u;           // [2n, C]: dO U^T above dR U^T
  float* dor_s;           // [2n, dk]: dO S0^T above dR S0^T
  float* u_ds;            // [n, dk]: U dS1^T
  float* weighed;         // [2n, dk]: e Q above -beta e K
  float* m;               // [2n, C]: dP D above G, summed over the value heads
  float* dqk;             // [2n, dk]: gradients of the normalised q and k
  float* columns;         // [C]: sums over rows of what flows into gamma_i - gamma_j
  float *dgamma, *dbeta;  // [C]
  float* ds;              // [group, dk, dv]
  int64_t size;

  DeltaBackwardScratch(const DeltaSizes& n, float* base)
      : DeltaBackwardScratch(n, DeltaScratch(base)) {}

 private:
  DeltaBackwardScratch(const DeltaSizes& n, DeltaScratch scratch)
      : ldk(DeltaScratch::rounded(n.dk)),
        ldv(DeltaScratch::rounded(n.dv)),
        gates(scratch),
        qk(scratch.take(2 * kDeltaChunk * ldk)),
        norms(scratch.take(2 * kDeltaChunk)),
        dots(scratch.take(2 * kDeltaChunk * kDeltaChunk)),
        decay(scratch.take(kDeltaChunk * kDeltaChunk)),
        p(scratch.take(kDeltaChunk * kDeltaChunk)),
        a(scratch.take(kDeltaChunk * kDeltaChunk)),
        w(scratch.take(kDeltaChunk * ldv)),
        u(scratch.take(kDeltaChunk * ldv)),
        dor(scratch.take(2 * kDeltaChunk * ldv)),
        dor_u(scratch.take(2 * kDeltaChunk * kDeltaChunk)),
        dor_s(scratch.take(2 * kDeltaChunk * ldk)),
        u_ds(scratch.take(kDeltaChunk * ldk)),
        weighed(scratch.take(2 * kDeltaChunk * ldk)),
        m(scratch.take(2 * kDeltaChunk * kDeltaChunk)),
        dqk(scratch.take(2 * kDeltaChunk * ldk)),
        columns(scratch.take(kDeltaChunk)),
        dgamma(scratch.take(kDeltaChunk)),
        dbeta(scratch.take(kDeltaChunk)),
        ds(scratch.take(n.group * n.matrix())),
        size(scratch.used()) {}
};

}  // namespace fwpkm
