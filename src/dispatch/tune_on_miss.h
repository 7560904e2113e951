// EITRI_TUNE: what a call does about a problem that has no tuned row of its own.
//
//   block    one process tunes it, `eitri tune`, before the call returns; other calls, threads and processes that share the folder of rows
//            wait for it and take its rows
//   online   a process beside this one, `eitri tune --follow`, works through what is recorded, at the lowest priority and for a part of the
//            time; calls never wait, and take its rows between calls like any changed file
//
// Candidates run in workers of that other process: one that faults harms nobody here. Rows go to the first folder of EITRI_TUNED, else to
// the project's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace eitri {

/// Called for a problem without a row of its own. True: rows have been read anew, so choose again. Throws Error{unsupported} when the command
/// `eitri` is not found, and when the problem would be tuned (block) while `stream` captures a graph.
bool tune_on_miss(std::string_view op, const Device& device, const std::string& problem, Stream stream);

/// Where rows of EITRI_TUNE go: an absolute path.
std::string tuning_folder();
/// Where misses are recorded: EITRI_RECORD; with EITRI_TUNE=online without it the folder `misses` beside the rows; else empty: nowhere.
std::string record_folder();

/// The command `eitri`: beside this library, in ../bin of it, or in PATH; empty: not found. `looked` (may be null) receives the places.
std::string find_tune_command(std::string* looked);

/// Tests only: starts this instead of `eitri` (argv without the options), and forgets which problems have been tuned.
void set_tune_command(std::vector<std::string> argv);
/// Ends the process of online tuning, if there is one. For tests; it ends by itself after this process has.
void stop_online_tuning();

}  // namespace eitri
