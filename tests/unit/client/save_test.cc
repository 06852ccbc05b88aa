#include <cmath>
#include <cstring>
#include <limits>

#include "tests/unit/client/client_fixture.h"

namespace backstay::tests {
namespace {

using testing::HasSubstr;

class SaveTest : public ClientTest {};

TEST_F(SaveTest, SealsExactlyTheBytesOfContiguousTensors) {
  const std::vector<float> a = Numbers(5000, 1);  // Straddles chunks of 4096 bytes.
  const std::vector<float> b = Numbers(3, 100);
  Result<Save> save = client_->Begin(7, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("a", a)));
  ASSERT_OK(save->AddTensor(Contiguous("b", b)));
  ASSERT_OK(save->StartCopy(3));
  ASSERT_OK(save->WaitCopied(kLongMs));
  ASSERT_OK(save->WaitSealed(kLongMs));
  ASSERT_OK(save->WaitProtected(kLongMs));
  ASSERT_OK(save->WaitCommitted(kLongMs));
  const std::string sealed = service_.SealedBytes(7);
  ASSERT_EQ(sealed.size(), 20032u + 64);
  EXPECT_EQ(std::memcmp(sealed.data(), a.data(), 20000), 0);
  EXPECT_EQ(sealed.substr(20000, 32), std::string(32, '\0'));
  EXPECT_EQ(std::memcmp(sealed.data() + 20032, b.data(), 12), 0);
  Result<SaveStats> stats = save->Stats();
  ASSERT_OK(stats.status());
  EXPECT_EQ(stats->used_bytes, sealed.size());
  EXPECT_GT(stats->copy_ns, 0u);
  EXPECT_NE(std::string(reinterpret_cast<char*>(stats->digest), 16), std::string(16, '\0'));
}

TEST_F(SaveTest, GathersStridedTensorsInRowMajorOrder) {
  // A transposed 30 x 70 matrix of a 70 x 40 one: column steps of 40.
  const std::vector<float> data = Numbers(70 * 40);
  Tensor tensor{.name = "t", .dtype = Dtype::kFp32, .data = data.data(), .shape = {30, 70}};
  tensor.strides = {1, 40};
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(tensor));
  ASSERT_OK(save->StartCopy(2));
  ASSERT_OK(save->WaitSealed(kLongMs));
  const std::string sealed = service_.SealedBytes(1);
  for (size_t row = 0; row < 30; ++row) {
    for (size_t column = 0; column < 70; ++column) {
      float value = 0;
      std::memcpy(&value, sealed.data() + (row * 70 + column) * 4, 4);
      ASSERT_EQ(value, data[column * 40 + row]) << row << ", " << column;
    }
  }
}

TEST_F(SaveTest, TakesEveryKindOfSlice) {
  const std::vector<float> data = Numbers(24);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  Tensor whole{.name = "whole", .data = data.data(), .shape = {4, 6}};
  Tensor replicated{.name = "replicated", .data = data.data(), .shape = {24}};
  replicated.slice = Slice::kReplicated;
  Tensor box{.name = "box", .data = data.data(), .shape = {2, 6}};
  box.slice = Slice::kBoxes;
  box.global_shape = {8, 6};
  box.boxes = {{{4, 0}, {2, 6}}};
  Tensor boxes = box;
  boxes.name = "boxes";
  boxes.boxes = {{{0, 0}, {1, 6}}, {{7, 3}, {1, 3}}};
  boxes.shape = {9};
  Tensor flat{.name = "flat", .data = data.data(), .shape = {12}};
  flat.slice = Slice::kFlat;
  flat.global_shape = {5, 2};
  flat.flat_offset = 0;
  flat.flat_count = 10;
  flat.padding_elements = 2;
  Tensor empty{.name = "empty", .shape = {0}};
  empty.slice = Slice::kEmpty;
  empty.global_shape = {100};
  Tensor zero_sized{.name = "zero", .shape = {3, 0, 2}};
  Tensor scalar{.name = "scalar", .data = data.data(), .shape = {}};
  Tensor alias{.name = "alias", .shape = {4, 6}};
  alias.slice = Slice::kAlias;
  alias.alias_of = "whole";
  Tensor alias_of_alias = alias;
  alias_of_alias.name = "alias of alias";
  alias_of_alias.alias_of = "alias";
  Tensor alias_of_slice{.name = "alias of slice", .shape = {2, 6}};
  alias_of_slice.slice = Slice::kAlias;
  alias_of_slice.alias_of = "box";
  for (const Tensor& tensor : {whole, replicated, box, boxes, flat, empty, zero_sized, scalar,
                               alias, alias_of_alias, alias_of_slice})
    ASSERT_OK(save->AddTensor(tensor));
  alias_of_slice.name = "misfit";
  alias_of_slice.global_shape = {9, 6};
  EXPECT_THAT(save->AddTensor(alias_of_slice).message(), HasSubstr("global shape"));
  ASSERT_OK(save->AddBlob("rng", std::as_bytes(std::span(data).first(5))));
  ASSERT_OK(save->AddTag("samples", "1024"));
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitSealed(kLongMs));  // The service has checked the contents by its own rules.
  Result<Shard> shard = client_->OpenShard({});
  ASSERT_OK(shard.status());
  const std::vector<TensorInfo> tensors = shard->Tensors();
  ASSERT_EQ(tensors.size(), 11u);
  EXPECT_EQ(tensors[10].tensor.global_shape, box.global_shape);
  EXPECT_EQ(tensors[3].tensor.boxes.size(), 2u);
  EXPECT_EQ(tensors[3].tensor.boxes[1].offset, (std::vector<uint64_t>{7, 3}));
  EXPECT_EQ(tensors[4].tensor.padding_elements, 2u);
  EXPECT_EQ(tensors[9].tensor.alias_of, "whole");
  EXPECT_EQ(tensors[9].offset_bytes, tensors[0].offset_bytes);
  std::vector<float> read(24);
  ASSERT_OK(shard->Read("alias of alias", {.data = read.data(), .shape = {4, 6}}));
  EXPECT_EQ(read, data);
  EXPECT_EQ(*shard->Tag("samples"), "1024");
}

TEST_F(SaveTest, KeepsEveryBitPattern) {
  std::vector<float> data = {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::signaling_NaN(),
                             -std::numeric_limits<float>::infinity(), -0.0f};
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("w", data)));
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitSealed(kLongMs));
  EXPECT_EQ(std::memcmp(service_.SealedBytes(1).data(), data.data(), 16), 0);
}

TEST_F(SaveTest, ABlobIsCopiedAtTheCall) {
  std::string blob(10'000, 'x');
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddBlob("blob", std::as_bytes(std::span(blob))));
  blob.assign(blob.size(), 'y');
  ASSERT_OK(save->StartCopy(2));
  ASSERT_OK(save->WaitSealed(kLongMs));
  EXPECT_EQ(service_.SealedBytes(1).substr(0, 10'000), std::string(10'000, 'x'));
}

TEST_F(SaveTest, AnEmptySaveIsLegal) {
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitCommitted(kLongMs));
}

TEST_F(SaveTest, GroupsAreWaitedForOneByOne) {
  const std::vector<float> a = Numbers(3000, 1);
  const std::vector<float> b = Numbers(3000, 5000);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("late", a, 5)));
  ASSERT_OK(save->AddTensor(Contiguous("early", b, 1)));
  ASSERT_OK(save->AddTensor(Tensor{.name = "nothing", .shape = {0}, .group = 9}));
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitCopied(1, kLongMs));
  ASSERT_OK(save->WaitCopied(5, kLongMs));
  ASSERT_OK(save->WaitCopied(9, kLongMs));
  EXPECT_CODE(save->WaitCopied(2, kLongMs), Code::kInvalidArgument);
  ASSERT_OK(save->WaitSealed(kLongMs));
}

TEST_F(SaveTest, SlotsAreMappedOnceAndReused) {
  for (uint64_t step = 1; step <= 6; ++step) SaveAndCommit(step, 2000, static_cast<float>(step));
  float first = 0;
  std::memcpy(&first, service_.SealedBytes(6).data(), 4);
  EXPECT_EQ(first, 6);
}

TEST_F(SaveTest, AbandonGivesTheSlotBack) {
  {
    Result<Save> save = client_->Begin(1, kLongMs);
    ASSERT_OK(save.status());
    ASSERT_OK(save->Abandon());
    EXPECT_CODE(save->StartCopy(1), Code::kStale);
  }
  { ASSERT_OK(client_->Begin(2, kLongMs).status()); }  // Destroyed without a copy: abandoned too.
  ASSERT_TRUE(service_.WaitFor(ClientBody::kAbandon, 2));
  SaveAndCommit(3, 100, 0);
  EXPECT_EQ(service_.filling_slots(), 0u);
}

// Attack: a save that failed at the service is let go of by its trainer only after the next save
// has got its slot, as in `save = *client.Begin(next)`.
TEST_F(SaveTest, AFailedSavesHandleDoesNotAbandonTheNextSaveInItsSlot) {
  const std::vector<float> data = Numbers(5000);
  std::optional<Save> failed;
  {
    Result<Save> begun = client_->Begin(1, kLongMs);
    ASSERT_OK(begun.status());
    failed.emplace(std::move(*begun));
  }
  service_.TakeSlotsBack();
  Result<Save> next = client_->Begin(2, kLongMs);
  ASSERT_OK(next.status());
  EXPECT_CODE(failed->StartCopy(1), Code::kStale);
  failed.reset();
  ASSERT_OK(next->AddTensor(Contiguous("w", data)));
  ASSERT_OK(next->StartCopy(1));
  ASSERT_OK(next->WaitCommitted(kLongMs));
}

// Attack: the service has taken a slot back from a failed save and given it to the next one while
// this process still copies for the failed one.
TEST_F(SaveTest, NoThreadCopiesForAFailedSaveOnceTheNextOneHasItsSlot) {
  constexpr size_t kCount = 4 << 20;
  ASSERT_OK(client_->Resize(kCount * sizeof(float)));
  const std::vector<float> old_data = Numbers(kCount, 1);
  const std::vector<float> data = Numbers(kCount, 2);
  for (uint64_t step = 1; step < 20; step += 2) {
    Result<Save> failed = client_->Begin(step, kLongMs);
    ASSERT_OK(failed.status());
    ASSERT_OK(failed->AddTensor(Contiguous("w", old_data)));
    ASSERT_OK(failed->StartCopy(2));
    service_.TakeSlotsBack();
    Result<Save> next = client_->Begin(step + 1, kLongMs);
    ASSERT_OK(next.status());
    EXPECT_NE(failed->WaitCopied(0).code(), Code::kDeadline) << "its threads have stopped";
    ASSERT_OK(next->AddTensor(Contiguous("w", data)));
    ASSERT_OK(next->StartCopy(2));
    ASSERT_OK(next->WaitCommitted(kLongMs));
    EXPECT_EQ(std::memcmp(service_.SealedBytes(step + 1).data(), data.data(),
                          data.size() * sizeof(float)),
              0);
  }
}

TEST_F(SaveTest, MemoryThatDidNotArriveFailsThatSaveOnly) {
  service_.Play(ClientBody::kBegin, Trick::kNoDescriptors);
  EXPECT_CODE(client_->Begin(1, kLongMs).status(), Code::kUnavailable);
  ASSERT_TRUE(service_.WaitFor(ClientBody::kAbandon, 1));
  for (uint64_t step = 2; step < 6; ++step) SaveAndCommit(step, 5000, 0);
  EXPECT_EQ(service_.filling_slots(), 0u);
}

TEST_F(SaveTest, AbandonIsRefusedOnceSealed) {
  const std::vector<float> data = Numbers(10);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("w", data)));
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitCopied(kLongMs));
  EXPECT_CODE(save->Abandon(), Code::kStale);
}

TEST_F(SaveTest, NoFreeSlotFailsThatSaveOnly) {
  Result<Save> one = client_->Begin(1, kLongMs);
  Result<Save> two = client_->Begin(2, kLongMs);
  ASSERT_OK(two.status());
  EXPECT_CODE(client_->Begin(3, kLongMs).status(), Code::kNoSpace);
  ASSERT_OK(two->Abandon());
  SaveAndCommit(4, 100, 0);
}

TEST_F(SaveTest, ResizeMakesRoomForALargerShard) {
  const std::vector<float> data = Numbers(300'000);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("w", data)));
  const Status too_large = save->StartCopy(1);
  EXPECT_EQ(too_large.code(), Code::kNoSpace);
  EXPECT_THAT(too_large.message(), HasSubstr("1200000 bytes"));
  ASSERT_OK(save->Abandon());
  Result<uint64_t> size = Client::Plan(std::vector<Tensor>{Contiguous("w", data)});
  ASSERT_OK(size.status());
  ASSERT_OK(client_->Resize(*size));
  SaveAndCommit(2, 300'000, 0);
}

TEST_F(SaveTest, AClosedSlotIsUnmappedAndTheServiceTold) {
  SaveAndCommit(1, 5000, 0);
  const uint64_t slot_id = service_.Received(ClientBody::kSeal).back().seal().slot_id();
  client::wire::Event closed;
  closed.set_kind(client::wire::Event::SLOT_CLOSED);
  closed.set_slot_id(slot_id);
  service_.SendEvent(closed);
  // Answered in order: by the time of this answer the event has been read, and answered too.
  const auto told = [&] { return service_.Received(ClientBody::kSlotUnmapped); };
  for (int i = 0; i < 1000 && told().empty(); ++i) ASSERT_OK(client_->NewAttempt().status());
  ASSERT_EQ(told().size(), 1u);
  EXPECT_EQ(told().front().slot_unmapped().slot_id(), slot_id);
  SaveAndCommit(2, 5000, 0);
}

TEST_F(SaveTest, BadTensorsAreNamed) {
  const std::vector<float> data = Numbers(24);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("layers.0.weight", data)));
  Tensor twice = Contiguous("layers.0.weight", data);
  EXPECT_THAT(save->AddTensor(twice).message(), HasSubstr("layers.0.weight was added before"));
  Tensor alias{.name = "tied", .shape = {24}};
  alias.slice = Slice::kAlias;
  alias.alias_of = "layers.0.wieght";
  EXPECT_THAT(save->AddTensor(alias).message(),
              HasSubstr("there is no tensor layers.0.wieght; the nearest name is layers.0.weight"));
  alias.alias_of = "layers.0.weight";
  alias.shape = {23};
  EXPECT_CODE(save->AddTensor(alias), Code::kInvalidArgument);
  Tensor box{.name = "box", .data = data.data(), .shape = {2, 6}};
  box.slice = Slice::kBoxes;
  box.global_shape = {8, 6};
  box.boxes = {{{7, 0}, {2, 6}}};
  EXPECT_THAT(save->AddTensor(box).message(), HasSubstr("not inside of the global shape [8, 6]"));
  box.boxes = {{{7}, {2}}};
  EXPECT_CODE(save->AddTensor(box), Code::kInvalidArgument);
  Tensor null{.name = "null", .shape = {1}};
  EXPECT_THAT(save->AddTensor(null).message(), HasSubstr("null"));
  Tensor negative = Contiguous("negative", data);
  negative.strides = {-1};
  EXPECT_CODE(save->AddTensor(negative), Code::kInvalidArgument);
  Tensor huge{.name = "huge", .data = data.data(), .shape = {1ull << 40, 1ull << 40}};
  EXPECT_CODE(save->AddTensor(huge), Code::kInvalidArgument);
  Tensor no_dtype = Contiguous("no dtype", data);
  no_dtype.dtype = static_cast<Dtype>(77);
  EXPECT_CODE(save->AddTensor(no_dtype), Code::kInvalidArgument);
  EXPECT_CODE(save->WaitCopied(0), Code::kInvalidArgument);  // Not started.
  EXPECT_CODE(save->StartCopy(0), Code::kInvalidArgument);
  ASSERT_OK(save->StartCopy(1));  // What was refused has left no trace.
  ASSERT_OK(save->WaitSealed(kLongMs));
  EXPECT_CODE(save->AddTensor(Contiguous("late", data)), Code::kInvalidArgument);
}

TEST_F(SaveTest, ARefusedSealFailsTheSaveWithTheServicesReason) {
  service_.Play(ClientBody::kSeal, Trick::kRefuse);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitCopied(kLongMs));
  const Status status = save->WaitCommitted(kLongMs);
  EXPECT_EQ(status.code(), Code::kStale);
  EXPECT_THAT(status.message(), HasSubstr("step 1"));
  EXPECT_THAT(status.message(), HasSubstr("refused by the test"));
}

TEST_F(SaveTest, SoundLaterSealsOnlyWithTheTrainersWord) {
  Result<Save> save = client_->Begin(9, kLongMs, /*sound_later=*/true);
  ASSERT_OK(save.status());
  ASSERT_OK(save->StartCopy(1));
  ASSERT_TRUE(service_.WaitFor(ClientBody::kSeal, 1));
  EXPECT_FALSE(service_.Received(ClientBody::kSeal)[0].seal().sound());
  ASSERT_OK(save->StepIsSound());
  ASSERT_TRUE(service_.WaitFor(ClientBody::kStepIsSound, 1));
  EXPECT_EQ(service_.Received(ClientBody::kStepIsSound)[0].step_is_sound().step(), 9u);
}

TEST_F(SaveTest, EventsArePolled) {
  SaveAndCommit(5, 10, 0);
  const std::optional<Event> committed = WaitEvent(BACKSTAY_EVENT_COMMITTED);
  ASSERT_TRUE(committed.has_value());
  EXPECT_EQ(committed->snapshot_step, 5u);
  EXPECT_FALSE(client_->NextEvent().has_value());
  pollfd fd = {.fd = client_->EventDescriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
}

TEST_F(SaveTest, EventsThatNobodyReadsAreBounded) {
  client::wire::Event event;
  event.set_kind(client::wire::Event::UNDER_PROTECTED);
  for (int i = 0; i < 1500; ++i) service_.SendEvent(event);
  event.set_kind(client::wire::Event::PROTECTED_AGAIN);
  service_.SendEvent(event);
  ASSERT_TRUE(client_->NewestCommitted().status().code() == Code::kNotFound);  // All has arrived.
  const std::optional<Event> first = client_->NextEvent();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->kind, BACKSTAY_EVENT_MISSED);
  EXPECT_TRUE(WaitEvent(BACKSTAY_EVENT_PROTECTED_AGAIN).has_value());
  EXPECT_FALSE(client_->NextEvent().has_value());
}

TEST_F(SaveTest, AFencedGenerationFailsWhatIsNotSealed) {
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  client::wire::Event event;
  event.set_kind(client::wire::Event::FENCED);
  event.set_generation(1);
  event.mutable_status()->set_code(BACKSTAY_STALE);
  event.mutable_status()->set_message("another process claimed shard 0");
  service_.SendEvent(event);
  const std::optional<Event> fenced = WaitEvent(BACKSTAY_EVENT_FENCED);
  ASSERT_TRUE(fenced.has_value());
  EXPECT_EQ(fenced->code, BACKSTAY_STALE);
  EXPECT_CODE(save->StartCopy(1), Code::kStale);
  EXPECT_CODE(save->WaitCommitted(kLongMs), Code::kStale);
}

}  // namespace
}  // namespace backstay::tests
