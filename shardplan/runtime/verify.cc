#include "shardplan/runtime/verify.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "shardplan/runtime/collectives.h"

namespace shardplan::runtime {
namespace {

constexpr double kNoise = 1e-6;
/// Of the gradients, what is measured against: times the tolerance, some hundred units in the last
/// place of fp64 and ten of fp32. A gradient that is zero but for rounding (of a bias in front of a
/// normalisation) is a sum over all of a batch and of space.
constexpr double kSums = 1e-4;
constexpr double kNarrowSums = 1e-2;
constexpr double kIndependent = 1e-9;  ///< tolerance up to which the two runs go on independently

/// Of a contiguous tensor's bytes: equal for equal content. Multiply and rotate by words.
std::int64_t hash_of(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (std::size_t left = tensor.nbytes(); left > 0;) {
    std::uint64_t word = 0;
    const std::size_t length = std::min(left, sizeof(word));
    std::memcpy(&word, bytes, length);
    hash = (hash ^ word) * 0xff51afd7ed558ccd;
    hash ^= hash >> 29U;
    bytes += length;
    left -= length;
  }
  return static_cast<std::int64_t>(hash);
}

/// Largest |a − b|; infinite where either is not a number.
double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  double largest = 0;
  const at::Tensor flat_a = a.reshape({-1});
  const at::Tensor flat_b = b.reshape({-1});
  constexpr std::int64_t kRun = std::int64_t{1} << 20;
  for (std::int64_t start = 0; start < flat_a.numel(); start += kRun) {
    const std::int64_t count = std::min(kRun, flat_a.numel() - start);
    const at::Tensor part_a = flat_a.narrow(0, start, count).to(at::kDouble);
    const at::Tensor part_b = flat_b.narrow(0, start, count).to(at::kDouble);
    const double here = part_a.sub(part_b).abs_().max().item<double>();
    largest = std::isnan(here) ? std::numeric_limits<double>::infinity() : std::max(largest, here);
  }
  return largest;
}

double largest_magnitude(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

/// Takes over the elements that are further apart than two runs may be that go on independently.
void adopt_distant_elements(const at::Tensor& mine, const at::Tensor& theirs) {
  const at::Tensor distant = theirs.sub(mine).abs_().gt(mine.abs().mul_(kIndependent));
  mine.copy_(at::where(distant, theirs, mine));
}

double relative(double difference, double magnitude) {
  if (difference == 0) {
    return 0;
  }
  return magnitude > 0 ? difference / magnitude : std::numeric_limits<double>::infinity();
}

/// For every rank, whether it must send its part: it has one, and no rank before it has the same
/// place of the tensor with the same content.
std::vector<bool> senders(const LocatedPart& located,
                          const ir::Shape& shape,
                          const std::vector<std::int64_t>& hashes) {
  std::vector<std::pair<std::vector<sharding::Range>, std::int64_t>> seen;
  std::vector<bool> sends(hashes.size(), false);
  for (std::int64_t member = 0; member < located.mesh->size(); ++member) {
    const auto rank = static_cast<std::size_t>(located.first_rank + member);
    std::pair<std::vector<sharding::Range>, std::int64_t> key(
        sharding::part(located.part.spec, shape, *located.mesh, member), hashes[rank]);
    sends[rank] = std::find(seen.begin(), seen.end(), key) == seen.end();
    seen.push_back(std::move(key));
  }
  return sends;
}

}  // namespace

double tolerance(const ir::Graph& step) {
  double widest = kIndependent;
  for (const ir::Value& value : step.values()) {
    if (value.kind != ir::ValueKind::kParameter || !ir::is_floating(value.type.dtype)) {
      continue;
    }
    switch (value.type.dtype) {
      case ir::DType::kFloat64:
        break;
      case ir::DType::kFloat32:
        widest = std::max(widest, 1e-4);
        break;
      default:
        widest = std::max(widest, 6.25e-2);
    }
  }
  return widest;
}

plan::Plan one_device_plan(const ir::Graph& step, const plan::Plan& like) {
  plan::Plan plan = like;
  plan.mesh = {};
  plan.strategies.assign(step.ops().size(), sharding::Strategy{});
  for (auto& [value, layout] : plan.layouts) {
    layout = sharding::ShardingSpec{};
  }
  plan.recompute.clear();
  plan.pipeline.reset();
  return plan;
}

Result<std::unique_ptr<Verifier>> Verifier::create(const ir::Graph& step,
                                                   const plan::Plan& plan,
                                                   std::int64_t rank,
                                                   std::uint64_t seed,
                                                   const Heartbeat& heartbeat,
                                                   const lower::PipelineProgram* without_flush) {
  std::unique_ptr<Verifier> made(new Verifier(step));
  made->without_flush_ = without_flush;
  made->heartbeat_ = heartbeat;
  made->adopt_gradients_ = tolerance(step) > kIndependent;
  if (rank != 0) {
    return made;
  }
  const sharding::StepPrice free = [](const sharding::ReshardStep&, const ir::TensorType&) {
    return 0.0;
  };
  SHARDPLAN_ASSIGN_OR_RETURN(
      lower::Program program,
      lower::lower(
          step, one_device_plan(step, plan), free, {.keep_gradients = without_flush == nullptr}));
  made->program_ = std::make_unique<lower::Program>(std::move(program));
  SHARDPLAN_ASSIGN_OR_RETURN(
      made->reference_, Executor::create({step, *made->program_, 0, seed, nullptr, heartbeat}));
  return made;
}

void Verifier::note(double relative, const std::string& where) {
  if (relative > worst_.relative || worst_.where.empty()) {
    worst_ = {relative, where + ", step " + std::to_string(steps_)};
  }
}

bool Verifier::is_parameter(ir::ValueId value) const {
  return step_.value(value).kind == ir::ValueKind::kParameter;
}

bool Verifier::is_compared(ir::ValueId value) const {
  const bool written = std::any_of(step_.writes.begin(),
                                   step_.writes.end(),
                                   [&](const ir::Write& write) { return write.target == value; });
  return is_parameter(value) || (step_.value(value).kind == ir::ValueKind::kBuffer && written);
}

void Verifier::compare_loss(double loss, double reference) {
  losses_.push_back(reference);
  const double difference = std::abs(loss - reference);
  note(std::isnan(difference) ? std::numeric_limits<double>::infinity()
                              : relative(difference, std::abs(reference)),
       "loss");
}

void Verifier::compare_tensor(const Trainer& run,
                              const LocatedPart& located,
                              const at::Tensor& reference,
                              double floor,
                              Adopts adopts,
                              const std::string& name) {
  if (heartbeat_) {
    heartbeat_(run.rank() != 0);
  }
  const std::int64_t world = run.ranks();
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(world), 0);
  if (world > 1) {
    const std::int64_t mine =
        located.part.tensor.defined() ? hash_of(located.part.tensor) : std::int64_t{0};
    const at::Tensor all = at::empty({world}, at::TensorOptions(at::kLong));
    all_gather_into(*run.world(), all, at::empty({1}, at::TensorOptions(at::kLong)).fill_(mine));
    std::memcpy(hashes.data(), all.const_data_ptr(), all.nbytes());
  }
  const std::vector<bool> sends = senders(located, step_.type(located.value).shape, hashes);
  if (run.rank() != 0) {
    if (sends[static_cast<std::size_t>(run.rank())]) {
      run.world()->transfer({}, {{0, located.part.tensor}});
    }
    return;
  }
  double difference = 0;
  const double magnitude = std::max(floor, largest_magnitude(reference));
  for (std::int64_t rank = 0; rank < world; ++rank) {
    if (!sends[static_cast<std::size_t>(rank)]) {
      continue;
    }
    const at::Tensor here =
        shard_view(reference, located.part.spec, *located.mesh, rank - located.first_rank);
    at::Tensor received = located.part.tensor;
    if (rank != 0) {
      received = at::empty(here.sizes(), here.options());
      run.world()->transfer({{rank, received}}, {});
    }
    const double apart = largest_difference(received, here);
    difference = std::max(difference, apart);
    if (adopts == Adopts::kAll) {
      here.copy_(received);
    } else if (adopts == Adopts::kDistantElements && apart > 0) {
      adopt_distant_elements(here, received);
    }
  }
  if (!name.empty()) {
    note(relative(difference, magnitude), name);
  }
}

/// A running mean is a sum over a batch, like a gradient: behind another normalisation it is zero
/// but for rounding.
double Verifier::floor_of_statistics(const Trainer& run) const {
  double largest = 0;
  for (const LocatedPart& buffer : run.residents()) {
    if (reference_ == nullptr || !is_compared(buffer.value) || is_parameter(buffer.value) ||
        !ir::is_floating(step_.type(buffer.value).dtype)) {
      continue;
    }
    largest = std::max(largest, largest_magnitude(reference_->resident(buffer.value).tensor));
  }
  return (adopt_gradients_ ? kNarrowSums : kSums) * largest;
}

/// `adopt`: the reference takes the run's over, and differences are not judged.
void Verifier::compare_residents(const Trainer& run, bool adopt) {
  double parameter_floor = 0;
  const double buffer_floor = floor_of_statistics(run);
  for (const LocatedPart& parameter : run.residents()) {
    if (!is_compared(parameter.value)) {
      continue;
    }
    const at::Tensor truth =
        reference_ == nullptr ? at::Tensor() : reference_->resident(parameter.value).tensor;
    if (reference_ != nullptr && is_parameter(parameter.value)) {
      parameter_floor = std::max(parameter_floor, kNoise * largest_magnitude(truth));
    }
    const std::string name = (is_parameter(parameter.value) ? "parameter " : "buffer ") +
                             step_.value(parameter.value).name;
    compare_tensor(run,
                   parameter,
                   truth,
                   is_parameter(parameter.value) ? parameter_floor : buffer_floor,
                   adopt ? Adopts::kAll : Adopts::kNothing,
                   adopt ? std::string() : name);
  }
}

Result<double> Verifier::run_delayed(const InputSource& inputs) {
  const lower::PipelineProgram& program = *without_flush_;
  std::map<ir::ValueId, int> stage_of;
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    for (std::size_t v = 0; v < program.stages[s].graph.values().size(); ++v) {
      if (program.stages[s].graph.values()[v].kind == ir::ValueKind::kParameter) {
        stage_of[program.stages[s].value_of[v]] = static_cast<int>(s);
      }
    }
  }
  std::map<std::pair<int, std::int64_t>, std::int64_t> version_of;  // by stage and microbatch
  for (const std::vector<lower::Task>& tasks : program.schedule.tasks) {
    for (const lower::Task& task : tasks) {
      if (task.work == lower::Work::kForward) {
        version_of[{task.stage, task.microbatch}] = task.weight_version;
      }
    }
  }
  std::map<std::int64_t, std::map<ir::ValueId, at::Tensor>> history;  // by updates since the start
  const auto remember = [&](std::int64_t version) {
    for (const auto& [weight, stage] : stage_of) {
      history[version][weight] = reference_->resident(weight).tensor.clone();
    }
  };
  remember(0);
  double sum = 0;
  const std::int64_t steps = program.schedule.microbatches / step_.microbatches;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t first = step * step_.microbatches;
    for (const auto& [weight, stage] : stage_of) {
      reference_->set_resident(weight, history.at(version_of.at({stage, first})).at(weight));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(
        const double loss,
        reference_->run_microbatches([&](ir::ValueId input, std::int64_t microbatch) {
          return inputs(input, first + microbatch);
        }));
    for (const auto& [weight, stage] : stage_of) {
      reference_->set_resident(weight, history.at(step).at(weight));
    }
    SHARDPLAN_RETURN_IF_ERROR(reference_->run_update());
    remember(step + 1);
    // No pass is further behind than there are stages.
    history.erase(step + 1 - static_cast<std::int64_t>(program.stages.size()));
    sum += loss;
  }
  return sum / static_cast<double>(steps);
}

Status Verifier::compare_delayed(const Trainer& run, double loss, const InputSource& inputs) {
  if (reference_ != nullptr) {
    SHARDPLAN_ASSIGN_OR_RETURN(const double reference, run_delayed(inputs));
    compare_loss(loss, reference);
  }
  compare_residents(run, adopt_gradients_);
  return {};
}

Status Verifier::compare_step(const Trainer& run, double loss, const InputSource& inputs) {
  const at::NoGradGuard no_grad;
  ++steps_;
  double largest_gradient = 0;
  std::map<ir::ValueId, Executor::Part> gradients;
  // Narrow gradients are taken over, so that parameters carry no noise of theirs.
  const double gradient_noise = adopt_gradients_ ? kNarrowSums : kSums;
  if (reference_ != nullptr && without_flush_ == nullptr) {
    SHARDPLAN_ASSIGN_OR_RETURN(const double reference, reference_->run_microbatches(inputs));
    compare_loss(loss, reference);
    gradients = reference_->gradients_before_update();
    for (const auto& [parameter, part] : gradients) {
      largest_gradient = std::max(largest_gradient, largest_magnitude(part.tensor));
    }
  }
  try {
    if (without_flush_ != nullptr) {
      return compare_delayed(run, loss, inputs);
    }
    for (const LocatedPart& gradient : run.trained_gradients()) {
      const ir::ValueId parameter = gradient.value;
      const at::Tensor truth =
          reference_ == nullptr ? at::Tensor() : gradients.at(parameter).tensor;
      const bool noise = truth.defined() && largest_magnitude(truth) < kNoise * largest_gradient;
      compare_tensor(run,
                     gradient,
                     truth,
                     gradient_noise * largest_gradient,
                     adopt_gradients_ || noise ? Adopts::kAll : Adopts::kDistantElements,
                     "gradient of " + step_.value(parameter).name);
    }
    gradients.clear();
    if (reference_ != nullptr) {
      SHARDPLAN_RETURN_IF_ERROR(reference_->run_update());
    }
    compare_residents(run, /*adopt=*/false);
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return Error{ErrorCode::kRuntime,
                 "the comparison with one device broke off: " + what.substr(0, what.find('\n')),
                 "rank " + std::to_string(run.rank()) + ", step " + std::to_string(steps_),
                 {}};
  }
  return {};
}

}  // namespace shardplan::runtime
