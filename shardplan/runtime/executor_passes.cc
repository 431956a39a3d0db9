// The passes of a pipeline stage: microbatches in flight are set aside and brought back, versions
// of weights are stashed, messages are sent and received.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/runtime/executor.h"

namespace shardplan::runtime {

using lower::LocalId;
using lower::Step;
using lower::StepKind;

Status Executor::run_part(const InputSource& inputs,
                          std::int64_t microbatch,
                          std::size_t begin,
                          std::size_t end,
                          bool kept,
                          bool keeps) {
  const at::NoGradGuard no_grad;
  microbatch_number_ = microbatch;
  fill_inputs(inputs);
  microbatch_number_ = microbatch % program_.microbatches;
  if (kept) {
    bring_back(microbatch);
  }
  const MemoryScope scope(memory_);
  SHARDPLAN_RETURN_IF_ERROR(renew_views(begin));
  SHARDPLAN_RETURN_IF_ERROR(
      run_section({program_.microbatch, microbatch_, times_.microbatch}, begin, end));
  if (keeps) {
    keep(microbatch);
  }
  return {};
}

void Executor::find_views_of_residents() {
  for (std::size_t i = 0; i < program_.microbatch.size(); ++i) {
    const Step& step = program_.microbatch[i];
    if (step.kind == StepKind::kCompute && ops::get(step_.op(step.op).name).view &&
        resident_root_[program_.root(step.outputs[0]).index()]) {
      resident_views_.push_back(i);
    }
  }
}

Status Executor::renew_views(std::size_t end) {
  for (const std::size_t view : resident_views_) {
    if (view < end) {
      SHARDPLAN_RETURN_IF_ERROR(
          run_section({program_.microbatch, microbatch_, times_.microbatch}, view, view + 1));
    }
  }
  return {};
}

Status Executor::run_forward(const InputSource& inputs, std::int64_t microbatch) {
  return run_part(inputs, microbatch, 0, backward_begin_, false, true);
}

Result<double> Executor::run_backward(const InputSource& inputs, std::int64_t microbatch) {
  SHARDPLAN_RETURN_IF_ERROR(
      run_part(inputs, microbatch, backward_begin_, program_.microbatch.size(), true, false));
  return program_.loss.valid() ? tensor(program_.loss).item<double>() : 0.0;
}

Status Executor::run_backward_inputs(const InputSource& inputs, std::int64_t microbatch) {
  SHARDPLAN_RETURN_IF_ERROR(
      run_part(inputs, microbatch, backward_begin_, weights_begin_, true, true));
  return {};
}

Result<double> Executor::run_backward_weights(const InputSource& inputs, std::int64_t microbatch) {
  SHARDPLAN_RETURN_IF_ERROR(
      run_part(inputs, microbatch, weights_begin_, program_.microbatch.size(), true, false));
  return program_.loss.valid() ? tensor(program_.loss).item<double>() : 0.0;
}

/// Everything but residents and their views: the microbatch's own.
void Executor::keep(std::int64_t microbatch) {
  std::vector<at::Tensor>& kept = kept_[microbatch];
  kept.resize(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!resident_root_[program_.root(LocalId(i)).index()]) {
      kept[i] = std::exchange(tensors_[i], at::Tensor());
    }
  }
}

void Executor::bring_back(std::int64_t microbatch) {
  const auto kept = kept_.find(microbatch);
  SHARDPLAN_CHECK(kept != kept_.end()) << "microbatch " << microbatch << " is not in flight";
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!resident_root_[program_.root(LocalId(i)).index()]) {
      tensors_[i] = std::move(kept->second[i]);
    }
  }
  kept_.erase(kept);
}

std::vector<LocalId> Executor::written_weights() const {
  std::vector<LocalId> written;
  for (const lower::Resident& resident : program_.residents) {
    if (step_.value(resident.global).kind == ir::ValueKind::kParameter &&
        std::any_of(step_.writes.begin(), step_.writes.end(), [&](const ir::Write& write) {
          return write.target == resident.global;
        })) {
      written.push_back(resident.local);
    }
  }
  return written;
}

/// The storage itself is put aside: what is kept of passes in flight may be views of it.
void Executor::stash_weights(std::int64_t version) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope(memory_);
  std::vector<at::Tensor>& stashed = stashed_[version];  // of none where the stage has no weights
  for (const LocalId weight : written_weights()) {
    stashed.push_back(tensor(weight));
    tensor(weight) = tensor(weight).clone();
  }
}

void Executor::exchange_weights(std::int64_t version) {
  std::vector<at::Tensor>& stashed = stashed_.at(version);
  const std::vector<LocalId> weights = written_weights();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    std::swap(tensor(weights[i]), stashed[i]);
  }
}

void Executor::run_message(const Step& step, const Prepared& prepared) {
  if (step.outputs.empty()) {
    messenger_->send(prepared.message, tensor(step.inputs[0]));
    return;
  }
  const ir::TensorType& type = prepared.results[0];
  const at::Tensor into = at::empty(type.shape, at::TensorOptions(scalar_type(type.dtype)));
  messenger_->receive(prepared.message, into);
  tensor(step.outputs[0]) = into;
}

}  // namespace shardplan::runtime
