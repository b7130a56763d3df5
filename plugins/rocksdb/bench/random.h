// What YCSB draws and hashes with: see ycsb.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(Next()) * bound >> 64);
  }
  double Fraction() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// Numbers below a count; number i is drawn in proportion to 1 / (i + 1)^0.99. After J. Gray et al.,
// "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994.
class Zipfian {
 public:
  explicit Zipfian(uint64_t count) { GrowTo(count); }
  // For a zeta that took long to sum.
  Zipfian(uint64_t count, double zeta) : count_(count), zeta_(zeta) { SetEta(); }

  void GrowTo(uint64_t count) {
    if (count <= count_) return;
    for (uint64_t i = count_; i < count; ++i) zeta_ += 1 / std::pow(static_cast<double>(i + 1), kTheta);
    count_ = count;
    SetEta();
  }

  uint64_t Draw(Random* random) const {
    const double fraction = random->Fraction();
    const double place = fraction * zeta_;
    if (place < 1) return 0;
    if (place < 1 + std::pow(0.5, kTheta)) return 1;
    const double drawn =
        static_cast<double>(count_) * std::pow(eta_ * fraction - eta_ + 1, 1 / (1 - kTheta));
    return std::min(static_cast<uint64_t>(drawn), count_ - 1);
  }

 private:
  static constexpr double kTheta = 0.99;

  void SetEta() {
    const double zeta_of_two = 1 + std::pow(0.5, kTheta);
    eta_ = (1 - std::pow(2.0 / static_cast<double>(count_), 1 - kTheta)) / (1 - zeta_of_two / zeta_);
  }

  uint64_t count_ = 0;
  double zeta_ = 0;
  double eta_ = 0;
};

// Of the 64 bit FNV-1a of the number's bytes the absolute value, as a signed number: as in
// Utils.fnvhash64.
inline uint64_t Hash(uint64_t number) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (int i = 0; i < 8; ++i, number >>= 8) hash = (hash ^ (number & 0xFF)) * 1099511628211ull;
  return hash >> 63 != 0 ? 0 - hash : hash;
}

// Records by their popularity, of those that are there. As in YCSB, the popular ones stay the same
// while others are inserted, or they are the latest.
class Popular {
 public:
  // `inserted` may be added to the `count` records that are there.
  Popular(bool latest, uint64_t count, uint64_t inserted)
      : latest_(latest),
        keys_(count + inserted * 2),
        zipfian_(latest ? Zipfian(count) : Zipfian(10000000000000000ull, 26.46902820178302)) {}

  // One of the `count` records that are there now.
  uint64_t Draw(uint64_t count, Random* random) {
    if (latest_) {
      zipfian_.GrowTo(count);
      return count - 1 - std::min(zipfian_.Draw(random), count - 1);
    }
    for (;;) {
      const uint64_t record = Hash(zipfian_.Draw(random)) % keys_;
      if (record < count) return record;
    }
  }

 private:
  const bool latest_;
  const uint64_t keys_;  // those that are there, and those that may come
  Zipfian zipfian_;
};
