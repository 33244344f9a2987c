// Scratch memory that is on the stack while it is small.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace kary {

class Words {
  public:
    Words() = default;
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    ~Words() { std::free(many_); }

    // Room for n words of eight bytes, once; null if there is no memory.
    int64_t* make(int64_t n) {
        if (n <= kFew) return few_;
        many_ = static_cast<int64_t*>(std::malloc(n * sizeof(int64_t)));
        return many_;
    }

  private:
    static constexpr int64_t kFew = 16;
    int64_t few_[kFew];
    int64_t* many_ = nullptr;
};

}  // namespace kary
