// What a benchmark costs: as crates/bench/src/measurement/resources.rs counts it.
#pragma once

#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "histogram.h"

inline std::string FileText(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number behind a word at the beginning of a line.
inline std::optional<uint64_t> NumberOf(const char* path, const std::string& word) {
  const std::string text = "\n" + FileText(path);
  const size_t at = text.find("\n" + word);
  if (at == std::string::npos) return std::nullopt;
  return strtoull(text.c_str() + at + 1 + word.size(), nullptr, 10);
}

// What the machine's processors did so far, in seconds.
inline std::optional<double> BusySeconds() {
  uint64_t user, nice, system, idle, wait, irq, softirq;
  const std::string text = FileText("/proc/stat");
  const char* format = "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64;
  if (sscanf(text.c_str(), format, &user, &nice, &system, &idle, &wait, &irq, &softirq) != 7)
    return std::nullopt;
  return static_cast<double>(user + nice + system + irq + softirq) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Of the control group, if the environment names its file, else of this process.
inline std::optional<uint64_t> MemoryBytes() {
  if (const char* path = getenv("ADIT_BENCH_MEMORY")) return NumberOf(path, "");
  const std::optional<uint64_t> kib = NumberOf("/proc/self/status", "VmRSS:");
  return kib ? std::optional<uint64_t>(*kib << 10) : std::nullopt;
}

// A row: the members of a Measurement of crates/bench.
struct Row {
  std::string id, title;
  uint64_t threads = 1, operation_bytes = 0, operations = 0;
  double seconds = 0;
  std::optional<double> cpu_seconds;
  std::optional<uint64_t> device_read_bytes, memory_bytes;
  Histogram latencies;
};

inline std::string Json(std::optional<double> number) {
  if (!number) return "null";
  char text[40];
  snprintf(text, sizeof(text), "%.6g", *number);
  return text;
}

inline std::string Json(std::optional<uint64_t> number) { return number ? std::to_string(*number) : "null"; }

inline std::string Json(const Row& row) {
  const auto microseconds = [&row](double fraction) {
    const std::optional<double> ns = row.latencies.Percentile(fraction);
    return Json(ns ? std::optional<double>(*ns / 1000) : std::nullopt);
  };
  std::stringstream text;
  text << "{\"id\":\"" << row.id << "\",\"title\":\"" << row.title << "\",\"threads\":" << row.threads
       << ",\"at\":null,\"operation_bytes\":" << row.operation_bytes << ",\"operations\":" << row.operations
       << ",\"seconds\":" << Json(std::optional<double>(row.seconds))
       << ",\"cpu_seconds\":" << Json(row.cpu_seconds) << ",\"p50_us\":" << microseconds(0.5)
       << ",\"p99_us\":" << microseconds(0.99) << ",\"p999_us\":" << microseconds(0.999)
       << ",\"device_read_bytes\":" << Json(row.device_read_bytes)
       << ",\"memory_bytes\":" << Json(row.memory_bytes) << "}";
  return text.str();
}
