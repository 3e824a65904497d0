// The program as a child process.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "temp_dir.h"

namespace fwpkm {

struct ProcessResult {
  int status = -1;  // exit status; -1 if killed by a signal
  std::string out, err;
};

// Runs a command through a shell and waits for it.
inline ProcessResult run_command(const std::string& line) {
  const TempDir dir;
  const std::string err = (dir / "err").string();
  const std::string command = line + " 2>" + err;
  ProcessResult result;
  std::FILE* pipe = popen(command.c_str(), "r");
  require(pipe != nullptr, "test", "cannot start {}", command);
  std::array<char, 4096> buffer;
  size_t got = 0;
  while ((got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    result.out.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.err = read_text(err);
  return result;
}

// The same for the program.
inline ProcessResult run_program(const std::string& arguments, const std::string& before = "") {
  return run_command(before + std::string(FWPKM_BINARY) + " " + arguments);
}

// What the program says with --json -; it must succeed.
inline nlohmann::json ok(const std::string& arguments) {
  const ProcessResult r = run_program(arguments + " --json -", "OMP_WAIT_POLICY=passive ");
  EXPECT_EQ(r.status, 0) << arguments << "\n" << r.err;
  return r.status == 0 ? nlohmann::json::parse(r.out) : nlohmann::json();
}
// It must fail, with this in its message.
inline void fails(const std::string& arguments, const std::string& part) {
  const ProcessResult r = run_program(arguments, "OMP_WAIT_POLICY=passive ");
  EXPECT_EQ(r.status, 1) << arguments;
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

// A child that can be killed. Its output goes nowhere.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments) {
    pid_ = fork();
    require(pid_ >= 0, "test", "cannot fork");
    if (pid_ == 0) {
      std::vector<char*> argv = {const_cast<char*>(FWPKM_BINARY)};
      for (const std::string& a : arguments) {
        argv.push_back(const_cast<char*>(a.c_str()));
      }
      argv.push_back(nullptr);
      if (freopen("/dev/null", "w", stdout) != nullptr &&
          freopen("/dev/null", "w", stderr) != nullptr) {
        execv(FWPKM_BINARY, argv.data());
      }
      _exit(127);
    }
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { kill(pid_, number); }
  // The exit status; -1 if a signal ended it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool running() {
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
    }
    return pid_ > 0;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace fwpkm
