#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"

namespace backstay::tools {

// Everything that can be set for one service, by flag or by the key of the same name in the config
// file; flags win. docs/operations.md has the table.
struct ServiceConfig {
  std::string node_id;  // Default: the host's name.
  std::vector<std::string>
      domains;  // Failure domain labels, outermost first. Default: this boot of this machine.
  bool hosts_simulated =
      false;  // Services on one machine stand for several hosts (demonstrations, tests).
  std::string data_dir = "/var/lib/backstay";
  std::string socket_path = "/run/backstay/backstayd.sock";  // Where trainers connect.
  std::string control_address = "127.0.0.1:7420";            // gRPC, for peers and the command.
  std::string advertise_host;  // How peers reach this node, when it listens on a wildcard address.
  std::string data_address = "127.0.0.1:7421";     // Bulk transfers.
  std::string metrics_address = "127.0.0.1:7422";  // Prometheus; empty: none.
  uint64_t memory_budget_bytes = 0;                // 0: half of the machine's memory.
  uint64_t repair_reserve_bytes = 0;               // Kept for repair; saves cannot use it.
  uint64_t scrub_bytes_per_second = 128 * kMiB;    // Read again unasked; 0: nothing.
  uint64_t chunk_bytes = kMiB;
  bool serve_metadata = false;   // Host the embedded metadata store.
  std::string metadata_address;  // Control address of the service that hosts it.
  Duration lease_ttl = std::chrono::seconds(3);
  Duration save_deadline = std::chrono::seconds(120);
  uint32_t lanes = 2;     // Data connections to each peer.
  bool insecure = false;  // Allow addresses that others can reach without TLS.
  std::string tls_ca, tls_certificate, tls_key;  // PEM files; all three or none.
  std::string log_level = "info";                // debug, info, warning, error
  std::string log_format = "text";               // text, json
};

// Whoever asked for help or the version gets a text to print, and the process ends with success.
using ConfigOrText = std::variant<ServiceConfig, std::string>;

// Reads flags and the file named by --config. kInvalidArgument names the flag or key, and the
// nearest known one when it is unknown; kPermission: an address that others can reach, without TLS
// and without --insecure.
Result<ConfigOrText> ParseServiceConfig(const std::vector<std::string>& arguments);

// Checks what single values cannot show: addresses, combinations, limits. Called by
// ParseServiceConfig().
Status ValidateServiceConfig(const ServiceConfig& config);

}  // namespace backstay::tools
