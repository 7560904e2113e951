// Environment and tuned files for the length of a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/settings.h"
#include "dispatch/database.h"

namespace eitri {

/// Sets one EITRI_* variable and reads the settings again; undoes both.
class SettingScope {
 public:
  SettingScope(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
    refresh();
  }
  ~SettingScope() {
    unsetenv(name_);
    refresh();
  }
  SettingScope(const SettingScope&) = delete;
  SettingScope& operator=(const SettingScope&) = delete;

 private:
  static void refresh() {
    reload_settings();
    reload_tuned();  // also forgets cached routes
  }
  const char* name_;
};

/// A folder that goes away with its files.
class FolderScope {
 public:
  FolderScope() {
    std::string pattern = (std::filesystem::temp_directory_path() / "eitri_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~FolderScope() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FolderScope(const FolderScope&) = delete;
  FolderScope& operator=(const FolderScope&) = delete;
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name, std::ios::binary) << text; }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace eitri
