// LevelDB's log of events: see logger.h.
#include "logger.h"

#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string>

namespace adit_leveldb {

void Logger::Logv(const char* format, std::va_list arguments) {
  timeval now;
  gettimeofday(&now, nullptr);
  tm local;
  localtime_r(&now.tv_sec, &local);
  char head[64];
  const size_t dated = strftime(head, sizeof(head), "%Y/%m/%d-%H:%M:%S", &local);
  snprintf(head + dated, sizeof(head) - dated, ".%06d %d ", static_cast<int>(now.tv_usec),
           gettid());

  std::va_list again;
  va_copy(again, arguments);
  const int needed = vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (needed < 0) return;
  std::string entry = head;
  const size_t begin = entry.size();
  entry.resize(begin + static_cast<size_t>(needed) + 1);
  vsnprintf(&entry[begin], static_cast<size_t>(needed) + 1, format, arguments);
  entry.pop_back();  // its zero
  if (entry.back() != '\n') entry += '\n';
  adit_append(file_, entry.data(), entry.size(), nullptr);
}

}  // namespace adit_leveldb
