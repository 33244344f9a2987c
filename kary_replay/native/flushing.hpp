// Takes the smallest numbers for 0.
//
// Processors of x86 take a hundred cycles and more for an operation with a number too small to be
// normal, in float32 below 1.2e-38. What decays ends among them, and stays: 0.9 times the smallest
// of them is rounded to itself again.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kary {

// While there is one, this thread takes such numbers for 0, and so do those of the pool that help
// it. Other processors lose no time with them, and compute with them as they are.
class Flushing {
  public:
#if defined(__x86_64__)
    Flushing() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kInputs | kOutcomes); }
    ~Flushing() { _mm_setcsr(before_); }
#else
    Flushing() {}
#endif
    Flushing(const Flushing&) = delete;
    Flushing& operator=(const Flushing&) = delete;

  private:
#if defined(__x86_64__)
    static constexpr unsigned kInputs = 1 << 6, kOutcomes = 1 << 15;  // DAZ and FTZ of MXCSR
    unsigned before_;
#endif
};

}  // namespace kary
