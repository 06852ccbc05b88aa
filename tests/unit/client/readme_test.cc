// The README's block, compiled and run as it stands there.
// Goal:   what a newcomer copies works: it saves and commits, and a new process reads it back.
// Method: readme_block.inc is cut out of README.md when the build is configured; against the fake
//         service.
#include <algorithm>
#include <stdexcept>

#include "tests/unit/client/client_fixture.h"

namespace backstay::tests {
namespace {

void RunBlock(const FakeService& service, std::vector<float>& values, uint64_t& cursor,
              uint64_t& step) {
  const uint32_t rank = 0;
  const uint32_t world_size = 1;
  const Tensor weights = Contiguous("weights", values);
  const auto share_token = [](const std::string& token) -> Result<std::string> { return token; };
  const auto check = [](const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.ToString());
  };
#include "readme_block.inc"
  check(save->WaitCommitted(kLongMs));
}

TEST(Readme, TheBlockSavesAndRestores) {
  FakeService service;
  std::vector<float> values = Numbers(5000);
  uint64_t cursor = 41;
  uint64_t step = 6;
  RunBlock(service, values, cursor, step);
  std::ranges::fill(values, 0.0f);
  cursor = 0;
  RunBlock(service, values, cursor, step);
  EXPECT_EQ(values, Numbers(5000));
  EXPECT_EQ(cursor, 41u);
  EXPECT_EQ(step, 8u);
}

}  // namespace
}  // namespace backstay::tests
