#include "tools/cli/commands.h"

#include "tools/cli/names.h"
#include "tools/service/credentials.h"

namespace backstay::tools {
namespace {

int64_t NowUnixMillis() { return SystemClock().UnixMillis(); }

Result<View> RunStatus(AdminClient& client) {
  BACKSTAY_ASSIGN_OR_RETURN(const wire::ClusterReply cluster, client.Cluster());
  Result<wire::JobsReply> jobs = client.Jobs();
  // Without the metadata store there is no list of jobs; what is known is shown all the same.
  if (!jobs.ok() && cluster.metadata_reachable()) return jobs.status();
  return ShowStatus(cluster, jobs.ok() ? *jobs : wire::JobsReply(), NowUnixMillis());
}

Result<View> RunJobs(const CommandLine& line, AdminClient& client) {
  BACKSTAY_ASSIGN_OR_RETURN(const wire::JobsReply jobs, client.Jobs());
  View view = ShowJobs(jobs, NowUnixMillis());
  if (line.names_only) {
    view.text.clear();
    for (const wire::JobOverview& job : jobs.jobs()) {
      view.text += ShowName(job.record().job()) + "\n";
    }
  }
  return view;
}

Result<wire::JobReply> AskJob(const CommandLine& line, AdminClient& client) {
  wire::JobRequest request;
  request.set_job(line.job);
  BACKSTAY_ASSIGN_OR_RETURN(wire::JobReply reply, client.Job(request));
  reply.mutable_record()->set_job(line.job);  // Also when the record is out of reach.
  return reply;
}

Result<View> RunWhy(const CommandLine& line, AdminClient& client) {
  BACKSTAY_ASSIGN_OR_RETURN(const wire::JobReply job, AskJob(line, client));
  BACKSTAY_ASSIGN_OR_RETURN(const wire::ClusterReply cluster, client.Cluster());
  return ShowWhy(job, cluster, {.timeline = line.timeline});
}

Result<View> RunLs(const CommandLine& line, AdminClient& client) {
  BACKSTAY_ASSIGN_OR_RETURN(const wire::JobReply job, AskJob(line, client));
  return ShowSnapshots(job);
}

Result<View> RunShow(const CommandLine& line, AdminClient& client) {
  wire::SnapshotRequest request;
  request.set_job(line.job);
  request.set_step(line.step);
  request.set_generation(line.generation);
  request.set_with_manifests(true);
  request.set_has_rank(line.rank.has_value());
  request.set_rank(line.rank.value_or(0));
  BACKSTAY_ASSIGN_OR_RETURN(const wire::SnapshotReply snapshot, client.Snapshot(request));
  return ShowTensors(JobName(line.job), snapshot, line.rank);
}

Result<View> RunRm(const CommandLine& line, AdminClient& client) {
  wire::EndJobRequest request;
  request.set_job(line.job);
  request.set_drop_state(line.drop_state);
  BACKSTAY_RETURN_IF_ERROR(client.EndJob(request));
  return View{"job " + ShowName(line.job) + " has ended" +
                  (line.drop_state ? "; its snapshots are let go\n" : "\n"),
              {{"job", ShowName(line.job)}, {"ended", true}, {"dropped", line.drop_state}},
              kExitFine};
}

Result<View> Dispatch(const CommandLine& line, const Console& console, AdminClient& client) {
  if (line.command == "status") return RunStatus(client);
  if (line.command == "jobs") return RunJobs(line, client);
  if (line.command == "why") return RunWhy(line, client);
  if (line.command == "ls") return RunLs(line, client);
  if (line.command == "show") return RunShow(line, client);
  if (line.command == "verify") return RunVerify(line, console, client);
  if (line.command == "fetch") return RunFetch(line, console, client);
  if (line.command == "rm") return RunRm(line, client);
  return InvalidArgument("unknown command " + line.command);
}

}  // namespace

int ExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitFine;
    case StatusCode::kNotFound:
    case StatusCode::kInvalidArgument:
    case StatusCode::kPermission:
      return kExitUsage;
    case StatusCode::kCorrupt:
    case StatusCode::kNoSpace:
      return kExitData;
    case StatusCode::kStale:
    case StatusCode::kUnavailable:
    case StatusCode::kDeadline:
    case StatusCode::kUnknownOutcome:
      return kExitUnreachable;
  }
  return kExitUnreachable;
}

int FailCommand(const CommandLine& line, const Console& console, const Status& status) {
  if (line.json) {
    const Json json = {{"error",
                        {{"code", StatusCodeName(status.code())},
                         {"message", ShowText(status.message())},
                         {"exit_code", ExitCode(status)}}}};
    console.err << json.dump(2) << "\n";
  } else {
    console.err << "backstay: " << ShowText(status.message()) << "\n";
  }
  return ExitCode(status);
}

int RunCommand(const CommandLine& line, const Console& console) {
  if (line.command == "completion") {
    console.out << CompletionScript(line.shell);
    return kExitFine;
  }
  const Result<Credentials> credentials =
      LoadCredentials(line.tls_ca, line.tls_certificate, line.tls_key);
  if (!credentials.ok()) return FailCommand(line, console, credentials.status());
  const bool reads_bytes = line.command == "verify" || line.command == "fetch";
  AdminClient client(line.connect, credentials->channel,
                     line.timeout.value_or(reads_bytes ? kLongTimeoutDefault : kTimeoutDefault));
  const Result<View> view = Dispatch(line, console, client);
  if (!view.ok()) return FailCommand(line, console, view.status());
  console.out << (line.json ? view->json.dump(2) + "\n" : view->text);
  console.out.flush();
  return console.out.good() ? view->exit_code
                            : FailCommand(line, console, NoSpace("the output cannot be written"));
}

}  // namespace backstay::tools
