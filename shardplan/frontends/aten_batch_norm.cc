// Batch, group and instance normalisation.

#include <string>

#include "shardplan/frontends/aten.h"

namespace shardplan::frontends {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

DType statistics_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? dtype : DType::kFloat32;
}

/// Operands after `operands`: the weight and the bias that are there; the attributes name them.
void add_affine(AtenCall& c, std::vector<ValueId>& operands, ir::Attributes& attributes) {
  for (const char* const name : {"weight", "bias"}) {
    const ValueId operand = c.tensor_if_given(name);
    attributes.set(name, operand.valid());
    if (operand.valid()) {
      operands.push_back(operand);
    }
  }
}

struct Running {
  ValueId mean{};
  ValueId variance{};
};

/// y of batch normalisation, by the statistics of x itself or by `fixed` ones.
ValueId batch_norm(AtenCall& c, ValueId x, ValueId moments, const Running& fixed) {
  Builder& b = c.builder();
  const DType dtype = statistics_dtype(b.type(x).dtype);
  const bool training = moments.valid();
  std::vector<ValueId> operands{x};
  if (training) {
    const std::string name(ir::dtype_name(dtype));
    for (const ValueId statistic : b.emit_all("batch_statistics", {moments}, {{"dtype", name}})) {
      operands.push_back(statistic);
    }
  } else {
    operands.push_back(c.cast(fixed.mean, dtype));
    operands.push_back(c.cast(fixed.variance, dtype));
  }
  ir::Attributes attributes{{"eps", c.real("eps", 1e-5)}, {"training", training}};
  add_affine(c, operands, attributes);
  return b.emit("batch_norm", std::move(operands), std::move(attributes));
}

/// Running statistics after this batch; none when there are none before.
std::vector<ValueId> moved(AtenCall& c, ValueId moments, const Running& running) {
  return c.builder().emit_all("batch_running",
                              {moments, running.mean, running.variance},
                              {{"momentum", c.real("momentum", 0.1)}});
}

bool has_statistics(AtenCall& c) {
  if (c.given("running_mean") && c.given("running_var")) {
    return true;
  }
  c.invalid("has no running statistics to normalise by");
  return false;
}

/// batch_norm in all its forms. The functional one returns the running statistics; others write
/// them.
void map_batch_norm(AtenCall& c) {
  const ValueId x = c.tensor("input");
  const Running running{c.tensor_if_given("running_mean"), c.tensor_if_given("running_var")};
  const bool training = c.ours() != "fixed" && c.flag("training", false);
  if (!c.ok() || (!training && !has_statistics(c))) {
    return;
  }
  if (!training) {
    c.result(batch_norm(c, x, {}, running));
    return;
  }
  const ValueId moments = c.builder().emit("batch_moments", {x});
  c.result(batch_norm(c, x, moments, running));
  if (!running.mean.valid() || !running.variance.valid() || !c.ok()) {
    return;
  }
  const std::vector<ValueId> now = moved(c, moments, running);
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (c.ours() == "functional") {
      c.result(now[i], 3 + i);
    } else {
      c.state().writes.push_back({i == 0 ? running.mean : running.variance, now[i]});
    }
  }
}

/// x [n, c, ...] as [n, groups, c / groups, ...], and weights likewise.
void map_group_norm(AtenCall& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor("input");
  const TensorType type = c.type_of("input");
  const std::int64_t groups = c.integer(c.ours() == "native" ? "group" : "num_groups", 1);
  if (!c.ok() || type.rank() < 2 || groups < 1 || type.shape[1] % groups != 0) {
    c.invalid("its groups do not fit its operand");
    return;
  }
  const std::int64_t channels = type.shape[1] / groups;
  Shape grouped = type.shape;
  grouped[1] = groups;
  grouped.insert(grouped.begin() + 2, channels);
  std::vector<ValueId> operands{c.reshape(x, grouped)};
  ir::Attributes attributes{{"eps", c.real("eps", 1e-5)}};
  add_affine(c, operands, attributes);
  for (std::size_t i = 1; i < operands.size(); ++i) {
    operands[i] = c.reshape(operands[i], {groups, channels});
  }
  c.result(c.reshape(b.emit("group_norm", std::move(operands), std::move(attributes)), type.shape));
}

/// Each channel of each sample by itself: groups of one channel.
void map_instance_norm(AtenCall& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor("input");
  const TensorType type = c.type_of("input");
  if (!c.flag("use_input_stats", true)) {
    const Running running{c.tensor_if_given("running_mean"), c.tensor_if_given("running_var")};
    if (has_statistics(c)) {
      c.result(batch_norm(c, x, {}, running));
    }
    return;
  }
  if (c.given("running_mean") || type.rank() < 2) {
    c.unsupported("in training is supported without running statistics only");
    return;
  }
  Shape grouped = type.shape;
  grouped.insert(grouped.begin() + 2, 1);
  std::vector<ValueId> operands{c.reshape(x, grouped)};
  ir::Attributes attributes{{"eps", c.real("eps", 1e-5)}};
  add_affine(c, operands, attributes);
  for (std::size_t i = 1; i < operands.size(); ++i) {
    operands[i] = c.reshape(operands[i], {type.shape[1], 1});
  }
  c.result(c.reshape(b.emit("group_norm", std::move(operands), std::move(attributes)), type.shape));
}

}  // namespace

std::vector<AtenOp> aten_batch_norm() {
  return {{"aten.batch_norm.default", map_batch_norm},
          {"aten.native_batch_norm.default", map_batch_norm},
          {"aten._native_batch_norm_legit.default", map_batch_norm},
          {"aten._native_batch_norm_legit.no_stats", map_batch_norm},
          {"aten._native_batch_norm_legit_functional.default", map_batch_norm, "functional"},
          {"aten._native_batch_norm_legit_no_training.default", map_batch_norm, "fixed"},
          {"aten.group_norm.default", map_group_norm},
          {"aten.native_group_norm.default", map_group_norm, "native"},
          {"aten.instance_norm.default", map_instance_norm}};
}

}  // namespace shardplan::frontends
