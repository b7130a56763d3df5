// Messages of Adit on their way to standard error and RocksDB's LOG: see messages.h.
#include "messages.h"

#include <signal.h>

#include <cstdio>
#include <new>
#include <system_error>

namespace adit_rocksdb {

Messages* messages = new Messages;

void Messages::Begin() {
  static std::once_flag began;  // for forked children, too
  std::call_once(began, [] { adit_set_log(Take, nullptr, ADIT_LOG_WARNING); });
}

void Messages::SetLogger(const std::shared_ptr<rocksdb::Logger>& logger, adit_volume* volume) {
  std::lock_guard<std::mutex> guard(mutex_);
  log_ = {logger, volume};
  if (thread_.joinable() || ended_) return;
  // The program's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { HandOn(); });
  } catch (const std::system_error&) {
    // Standard error has to do.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Messages::Take(void*, int level, const char* text) {
  fprintf(stderr, "adit: %s: %s\n", level == ADIT_LOG_ERROR ? "error" : "warning", text);
  std::lock_guard<std::mutex> guard(messages->mutex_);
  if (!messages->thread_.joinable() || messages->ended_) return;
  if (messages->waiting_.size() == kWaitingMax) return;
  try {
    messages->waiting_.push_back({level, text});
  } catch (const std::bad_alloc&) {
    return;
  }
  messages->changed_.notify_all();
}

void Messages::HandOn() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Message message = std::move(waiting_.front());
    waiting_.pop_front();
    const Log log = log_;
    busy_ = true;
    lock.unlock();
    Write(log, message);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void Messages::Write(const Log& log, const Message& message) {
  std::lock_guard<std::mutex> guard(writing_);
  const auto logger = log.logger.lock();
  adit_statfs statfs = ADIT_STATFS_INIT;
  if (!logger || adit_volume_statfs(log.volume, &statfs) < 0 || statfs.available_bytes == 0) return;
  const char* text = message.text.c_str();
  if (message.level == ADIT_LOG_ERROR) {
    rocksdb::Error(logger.get(), "Adit: %s", text);
  } else {
    rocksdb::Warn(logger.get(), "Adit: %s", text);
  }
  logger->Flush();
}

void Messages::Drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || (waiting_.empty() && !busy_); });
}

void Messages::LetGo() { std::lock_guard<std::mutex> guard(writing_); }

void Messages::End() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace adit_rocksdb
