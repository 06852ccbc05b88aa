#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace backstay::example {

// XXH3-128 of bytes given piece by piece.
class Digester {
 public:
  Digester();
  ~Digester();

  Digester& Add(std::span<const std::byte> bytes);
  // 32 hexadecimal digits.
  std::string Hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace backstay::example
