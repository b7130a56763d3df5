// LevelDB on Adit: an Env whose files lie in one Adit volume.
//
//   leveldb::Env* env = nullptr;
//   leveldb::Status status = adit::NewLevelDbEnv("/data/v.adit", {}, &env);
//   if (!status.ok()) ...                      // status.ToString() names the volume and what to do
//   leveldb::Options options;
//   options.env = env;
//   status = leveldb::DB::Open(options, "/db", &db);   // a path in the volume
//   ...
//   delete db;
//   delete env;                                  // closes the volume
//
// Paths: of the volume, from its root; a leading '/' is optional. Nothing is written outside it.
// Threads: any may call any function of the Env.
#pragma once

#include <cstdint>
#include <string>

#include "leveldb/env.h"
#include "leveldb/status.h"

namespace adit {

struct LevelDbEnvOptions {
  // Bound of the volume's page cache, in bytes: 8 MiB to the memory of the machine. 0: what
  // ADIT_CACHE says, else 256 MiB.
  uint64_t cache_bytes = 0;
  // Bound of the copies in memory of tables that are read often, in bytes, beside the page cache: a
  // block is taken from such a copy without being copied. 0: no copies.
  uint64_t table_copies_bytes = 64 << 20;
  // Every change is an IO error; several such Envs may have the volume open. LevelDB opens no
  // database then: it changes files to open one.
  bool read_only = false;
};

// Opens the volume at an address (the path of an image file or block device, or mem:SIZE), and
// makes an Env for any number of databases in it. The environment variables ADIT_CACHE,
// ADIT_SURVIVE, ADIT_SURVIVE_IN and ADIT_TAKEOVER have their say, as in adit.h
// (adit_options_from_environment).
//
// The caller deletes *env after all its databases, files, locks and loggers. That makes everything
// durable and closes the volume. An Env that is never deleted is made durable at exit.
//
// Fails with NotFound if nothing is at the address, else with IOError: the volume is in use (by
// another Env, or by the process that the message names), is no volume, or can't be opened. *env is
// null then.
leveldb::Status NewLevelDbEnv(const std::string& volume, const LevelDbEnvOptions& options,
                              leveldb::Env** env);

}  // namespace adit
