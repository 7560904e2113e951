// The CPU as a device: detection, the forced level, the measured profile.
#pragma once

#include <optional>
#include <string>

#include "backend/backend.h"

namespace eitri {

/// The CPU at the level in force (EITRI_ISA or force_isa, else the best one). The reference stays valid for ever; a
/// later force_isa gives out another Device. AMX permission is asked from the OS once, on the first call.
const Device& cpu_device();
/// What the machine can do, whatever is forced.
Isa best_isa();
/// Limits the level for the whole process; Error when the machine cannot run it. For tests and the CLI.
void force_isa(Isa isa);
/// Bumped by force_isa, set_profile and by everything else that makes cached routes stale.
uint32_t route_generation();
void bump_route_generation();

/// Measures peak rates and read bandwidth for `threads` threads (about half a second) at the level of the device.
Profile measure_profile(const Device& device, int threads);
/// The profile that an earlier measurement of this machine, level and thread count left in the cache folder.
std::optional<Profile> stored_profile(const Device& device, int threads);
/// The profile of the device at hand: measured now if the cache folder has none for this machine, level and thread
/// count or only a noisy one, and stored there. `refresh` measures anyway.
Profile cached_profile(const Device& device, int threads, bool refresh = false);
/// Uses this profile for routing and floors from now on.
void set_profile(const Profile& profile);
/// Why AMX is not in use: empty when it is, else one sentence (not there, or the OS refused).
std::string amx_status();

}  // namespace eitri
