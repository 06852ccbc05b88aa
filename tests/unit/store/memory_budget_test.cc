#include "store/memory_budget.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"

namespace backstay::store {
namespace {

// A made-up root directory with the kernel's files in it.
class KernelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "backstay-budget-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(KernelFiles, NothingToReadIsNoLimit) {
  const MemoryLeft left = ReadMemoryLeft(root_);
  EXPECT_FALSE(left.control_group_bytes);
  EXPECT_FALSE(left.machine_bytes);
}

TEST_F(KernelFiles, MachineCountsFreeHugePages) {
  Write("/proc/meminfo",
        "MemTotal:       100 kB\nMemAvailable:       60 kB\nHugePages_Total:       9\n"
        "HugePages_Free:        3\nHugepagesize:       2048 kB\n");
  EXPECT_EQ(ReadMemoryLeft(root_).machine_bytes, 60 * kKiB + 6 * kMiB);
}

TEST_F(KernelFiles, Version2TakesTheTightestGroupAndIgnoresReclaimableCache) {
  Write("/proc/self/cgroup", "0::/pods/train\n");
  Write("/sys/fs/cgroup/pods/train/memory.max", "max\n");
  Write("/sys/fs/cgroup/pods/train/memory.current", "5000\n");
  Write("/sys/fs/cgroup/pods/memory.max", "10000\n");
  Write("/sys/fs/cgroup/pods/memory.current", "7000\n");
  Write("/sys/fs/cgroup/pods/memory.stat", "anon 100\ninactive_file 2000\nactive_file 5\n");
  EXPECT_EQ(ReadMemoryLeft(root_).control_group_bytes, 5000u);
}

TEST_F(KernelFiles, Version1IsReadBesideVersion2) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job/a\n0::/\n");
  Write("/sys/fs/cgroup/memory/job/a/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/job/a/memory.usage_in_bytes", "100\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1500\n");
  Write("/sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 600\n");
  EXPECT_EQ(ReadMemoryLeft(root_).control_group_bytes, 100u);
}

// Inside a container /proc names the host's path, which is not there.
TEST_F(KernelFiles, MissingGroupFallsBackToTheMountsRoot) {
  Write("/proc/self/cgroup", "0::/host/path/of/container\n");
  Write("/sys/fs/cgroup/memory.max", "4096\n");
  Write("/sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(ReadMemoryLeft(root_).control_group_bytes, 0u) << "over its limit: nothing is left";
}

TEST_F(KernelFiles, DamagedFilesDoNotCount) {
  Write("/proc/self/cgroup", "nonsense\n::\n0::relative\n");
  Write("/proc/meminfo", "MemAvailable: lots\n");
  EXPECT_FALSE(ReadMemoryLeft(root_).control_group_bytes);
  EXPECT_FALSE(ReadMemoryLeft(root_).machine_bytes);
}

TEST(ComputeBudget, IsTheLeastAndSaysWhich) {
  const MemoryLeft none{};
  EXPECT_EQ(ComputeBudget(100, none, 0, 10).bytes, 100u);
  EXPECT_EQ(ComputeBudget(100, {.control_group_bytes = 60, .machine_bytes = 80}, 0, 10).bytes, 50u);
  EXPECT_EQ(ComputeBudget(100, {.control_group_bytes = 60, .machine_bytes = 80}, 0, 10).reason,
            "what the control group leaves");
  EXPECT_EQ(ComputeBudget(100, {.control_group_bytes = 90, .machine_bytes = 40}, 0, 10).reason,
            "what the machine leaves");
  // Memory that slots have already is not counted against them.
  EXPECT_EQ(ComputeBudget(100, {.control_group_bytes = 5, .machine_bytes = {}}, 70, 10).bytes, 70u);
  EXPECT_EQ(ComputeBudget(100, {.control_group_bytes = 50, .machine_bytes = {}}, 70, 10).reason,
            "configured");
}

TEST(SystemMemoryBudget, ReadsThisMachine) {
  const Budget budget = SystemMemoryBudget(uint64_t{1} << 60).Compute(0);
  EXPECT_LT(budget.bytes, uint64_t{1} << 60) << budget.reason;
  EXPECT_EQ(SystemMemoryBudget(1).Compute(0).bytes, 1u);
}

}  // namespace
}  // namespace backstay::store
