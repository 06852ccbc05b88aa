#include "examples/model.h"

#include <cmath>
#include <vector>

#include "examples/kernels.h"
#include "examples/random.h"
#include "gtest/gtest.h"

namespace backstay::example {
namespace {

constexpr size_t kBatchSize = 8;

Batch MakeBatch() {
  Batch batch;
  batch.size = kBatchSize;
  Random random(7);
  for (size_t i = 0; i < kBatchSize * kContextSizeBytes; ++i) {
    batch.context.push_back(static_cast<uint8_t>(random.Next()));
  }
  for (size_t i = 0; i < kBatchSize; ++i) {
    batch.target.push_back(static_cast<uint8_t>(random.Next()));
  }
  for (size_t i = 0; i < kBatchSize * kNgramCount * kNgramWidth; ++i) {
    batch.ngram_rows.push_back(random.NextUnit() - 0.5f);
  }
  for (size_t i = 0; i < kBatchSize * kHiddenWidth; ++i) {
    batch.keep_scale.push_back(random.NextUnit() < kDropout ? 0.0f : 1.0f / (1.0f - kDropout));
  }
  return batch;
}

struct Evaluation {
  double loss;
  std::vector<float> weight_gradient;
  std::vector<float> ngram_gradient;
};

Evaluation Evaluate(const std::vector<float>& weights, const Batch& batch) {
  Evaluation result{0, std::vector<float>(kWeightCount),
                    std::vector<float>(batch.ngram_rows.size())};
  Network network;
  result.loss =
      network.LossAndGradients(weights, batch, result.weight_gradient, result.ngram_gradient);
  return result;
}

// Compares the slope along `gradient` itself, within values[begin, end), with the difference of the
// loss at two nearby points. Along its own direction a gradient is as large as it gets, so rounding
// stays small beside it.
template <typename LossAt>
void ExpectSlope(std::vector<float> values, const std::vector<float>& gradient, size_t begin,
                 size_t end, LossAt loss_at) {
  double norm = 0;
  for (size_t i = begin; i < end; ++i) norm += static_cast<double>(gradient[i]) * gradient[i];
  norm = std::sqrt(norm);
  ASSERT_GT(norm, 1e-4) << "the parameter has no part in the loss";
  constexpr double kDistance = 1e-2;
  const auto shifted = [&](double distance) {
    std::vector<float> moved = values;
    for (size_t i = begin; i < end; ++i) {
      moved[i] += static_cast<float>(distance * gradient[i] / norm);
    }
    return loss_at(moved);
  };
  const double slope = (shifted(kDistance) - shifted(-kDistance)) / (2 * kDistance);
  EXPECT_NEAR(slope / norm, 1.0, 0.01);
}

TEST(Network, WeightGradientsMatchFiniteDifferences) {
  const Batch batch = MakeBatch();
  const std::vector<float> weights = InitialWeights(1);
  const Evaluation at = Evaluate(weights, batch);
  for (const Parameter& parameter : kParameters) {
    SCOPED_TRACE(parameter.name);
    ExpectSlope(weights, at.weight_gradient, parameter.offset, parameter.offset + parameter.size(),
                [&](const std::vector<float>& moved) { return Evaluate(moved, batch).loss; });
  }
}

TEST(Network, TableGradientMatchesFiniteDifferences) {
  const Batch batch = MakeBatch();
  const std::vector<float> weights = InitialWeights(1);
  const Evaluation at = Evaluate(weights, batch);
  ExpectSlope(batch.ngram_rows, at.ngram_gradient, 0, batch.ngram_rows.size(),
              [&](const std::vector<float>& moved) {
                Batch other = batch;
                other.ngram_rows = moved;
                return Evaluate(weights, other).loss;
              });
}

TEST(Network, FreshWeightsGuessNearUniformly) {
  EXPECT_NEAR(Evaluate(InitialWeights(1), MakeBatch()).loss, std::log(256.0), 1.0);
}

TEST(Parameters, CoverTheFlatArrayWithoutGaps) {
  size_t next = 0;
  for (const Parameter& parameter : kParameters) {
    EXPECT_EQ(parameter.offset, next) << parameter.name;
    next += parameter.size();
  }
  EXPECT_EQ(next, kWeightCount);
}

TEST(Adam, FirstStepMovesByTheLearningRateAgainstTheGradient) {
  // With both moments' bias corrected, the first step is the sign of the gradient times the
  // learning rate (2e-3).
  const std::vector<float> gradient = {0.5f, -3.0f, 0.0f};
  std::vector<float> weight(3, 0.0f), moment1(3, 0.0f), moment2(3, 0.0f);
  Adam(1).Update(gradient.data(), weight.data(), moment1.data(), moment2.data(), weight.size());
  EXPECT_NEAR(weight[0], -2e-3, 1e-7);
  EXPECT_NEAR(weight[1], 2e-3, 1e-7);
  EXPECT_EQ(weight[2], 0.0f);
}

TEST(Adam, NoGradientMeansZeros) {
  const std::vector<float> zeros(5, 0.0f);
  std::vector<float> weight = {1, -2, 3, 0, 1e-3f}, moment1 = {1, 2, 3, 0, 1e-30f},
                     moment2 = {1, 2, 0, 0, 1e-30f};
  std::vector<float> weight_b = weight, moment1_b = moment1, moment2_b = moment2;
  Adam(9).Update(zeros.data(), weight.data(), moment1.data(), moment2.data(), weight.size());
  Adam(9).Update(nullptr, weight_b.data(), moment1_b.data(), moment2_b.data(), weight.size());
  EXPECT_EQ(weight, weight_b);
  EXPECT_EQ(moment1, moment1_b);
  EXPECT_EQ(moment2, moment2_b);
  EXPECT_EQ(moment1[4], 0.0f) << "fades to zero, not to denormal numbers";
}

}  // namespace
}  // namespace backstay::example
