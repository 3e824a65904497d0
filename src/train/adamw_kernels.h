// The element-wise work of an optimizer step, per device.
#pragma once

#include "tensor/view.h"

namespace fwpkm {

struct AdamWConstants {
  double beta1 = 0, beta2 = 0, eps = 0;
  double keep = 1;          // what decay leaves of the parameter
  double step = 0;          // lr / (1 - beta1^t)
  double second_scale = 1;  // 1 / sqrt(1 - beta2^t)
  double gradient_scale = 1;
};

// Updates p, m and v in place and sets g to zero.
void adamw_update(const View& p, const View& g, const View& m, const View& v,
                  const AdamWConstants& constants);
double sum_of_squares(const View& x);

}  // namespace fwpkm
