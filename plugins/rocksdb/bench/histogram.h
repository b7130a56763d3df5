// Latencies by buckets of logarithmic width.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

// Latencies in ns, by buckets that are 1/128 of their number wide: half of that is the error of
// their middle.
class Histogram {
 public:
  void Add(uint64_t number) {
    ++buckets_[Bucket(number)];
    ++count_;
  }

  // For another process: all of it, as bytes.
  std::vector<uint64_t> Numbers() const {
    std::vector<uint64_t> numbers = buckets_;
    numbers.push_back(count_);
    return numbers;
  }

  static size_t NumbersCount() { return (64 - kBits + 1) * kSteps + 1; }

  static Histogram Of(const std::vector<uint64_t>& numbers) {
    Histogram histogram;
    histogram.buckets_.assign(numbers.begin(), numbers.end() - 1);
    histogram.count_ = numbers.back();
    return histogram;
  }

  void Add(const Histogram& other) {
    for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
  }

  // What `fraction` of the numbers did not exceed; nothing if none is expected beyond it.
  std::optional<double> Percentile(double fraction) const {
    if (static_cast<double>(count_) * (1 - fraction) < 1 - 1e-6) return std::nullopt;
    const auto rank = static_cast<uint64_t>(std::ceil(static_cast<double>(count_) * fraction));
    uint64_t seen = 0;
    size_t bucket = 0;
    while ((seen += buckets_[bucket]) < rank) ++bucket;
    if (bucket < 2 * kSteps) return static_cast<double>(bucket);
    const unsigned shift = static_cast<unsigned>(bucket / kSteps) - 1;
    const uint64_t lowest = (bucket % kSteps + kSteps) << shift;
    return static_cast<double>(lowest) + static_cast<double>((uint64_t{1} << shift) - 1) / 2;
  }

 private:
  static constexpr unsigned kBits = 7;
  static constexpr uint64_t kSteps = 1 << kBits;

  // Below 2 * kSteps each number has its own, above that each power of two has kSteps of them.
  static size_t Bucket(uint64_t number) {
    if (number < 2 * kSteps) return number;
    const unsigned shift = 63u - static_cast<unsigned>(__builtin_clzll(number)) - kBits;
    return shift * kSteps + (number >> shift);
  }

  std::vector<uint64_t> buckets_ = std::vector<uint64_t>((64 - kBits + 1) * kSteps);
  uint64_t count_ = 0;
};
