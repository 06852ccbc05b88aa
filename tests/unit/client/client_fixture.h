#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <numeric>
#include <string>
#include <vector>

#include "backstay_session.hpp"
#include "tests/unit/client/fake_service.h"

namespace backstay::tests {

using Trick = FakeService::Trick;

#define ASSERT_OK(expression)                              \
  do {                                                     \
    const Status ok_status_ = (expression);                \
    ASSERT_TRUE(ok_status_.ok()) << ok_status_.ToString(); \
  } while (false)
#define EXPECT_CODE(expression, expected)                                \
  do {                                                                   \
    const Status code_status_ = (expression);                            \
    EXPECT_EQ(code_status_.code(), expected) << code_status_.ToString(); \
  } while (false)

// Long enough for a loaded machine; no test waits for it to pass.
inline constexpr uint32_t kLongMs = 20'000;

inline std::vector<float> Numbers(size_t count, float first = 0) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

inline Tensor Contiguous(const std::string& name, const std::vector<float>& data,
                         uint32_t group = 0) {
  Tensor tensor{.name = name, .dtype = Dtype::kFp32, .data = data.data(), .shape = {data.size()}};
  tensor.group = group;
  return tensor;
}

// A registered client of a fake service.
class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Client> client = Client::Connect(service_.socket_path(), kLongMs);
    ASSERT_OK(client.status());
    client_.emplace(std::move(*client));
    ASSERT_OK(Register(1 << 20));
  }

  Status Register(uint64_t size_bytes) {
    RegisterOptions options = Client::DefaultRegisterOptions();
    options.job = "job";
    options.token = "secret";
    options.size_bytes = size_bytes;
    options.timeout_ms = kLongMs;
    return client_->Register(options).status();
  }

  // Saves one tensor "w" of `count` numbers from `first` on, and waits for the commit.
  void SaveAndCommit(uint64_t step, size_t count, float first) {
    const std::vector<float> data = Numbers(count, first);
    Result<Save> save = client_->Begin(step, kLongMs);
    ASSERT_OK(save.status());
    ASSERT_OK(save->AddTensor(Contiguous("w", data)));
    ASSERT_OK(save->StartCopy(2));
    ASSERT_OK(save->WaitCopied(kLongMs));
    ASSERT_OK(save->WaitCommitted(kLongMs));
  }

  // Reads events until one of `kind` comes.
  std::optional<Event> WaitEvent(int kind) {
    while (true) {
      while (std::optional<Event> event = client_->NextEvent()) {
        if (event->kind == kind) return event;
      }
      pollfd fd = {.fd = client_->EventDescriptor(), .events = POLLIN, .revents = 0};
      if (::poll(&fd, 1, static_cast<int>(kLongMs)) <= 0) return std::nullopt;
    }
  }

  FakeService service_;
  std::optional<Client> client_;
};

}  // namespace backstay::tests
