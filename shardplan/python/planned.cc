#include "shardplan/python/planned.h"

#include <ATen/ops/empty.h>

#include "shardplan/cost/cost_model.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/runtime/collectives.h"
#include "shardplan/support/text.h"
#include "shardplan/training/microbatch.h"

namespace shardplan::python {

Status Planned::load(const Request& request) {
  SHARDPLAN_ASSIGN_OR_RETURN(recipe_.optimizer, training::parse_optimizer(request.optimizer));
  SHARDPLAN_ASSIGN_OR_RETURN(recipe_.precision, training::parse_precision(request.precision));
  recipe_.clip_norm = request.clip_norm;
  recipe_.microbatches = request.microbatches;
  frontends::LoadOptions options{
      .weights = true, .dims = request.binding.dims, .loss = request.binding.loss};
  if (!request.binding.target.empty()) {
    options.target = request.binding.target;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward,
                             frontends::load_model(request.model, options));
  for (const ir::Value& value : forward.values()) {
    if (value.kind == ir::ValueKind::kInput) {
      inputs_.push_back({value.name, value.type});
    }
  }
  SHARDPLAN_ASSIGN_OR_RETURN(step_, training::build_training_step(forward, recipe_));
  return {};
}

Status Planned::lower_plan() {
  const cost::CostModel cost(plan_.cluster, plan_.mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(
      program_,
      lower::lower(step_,
                   plan_,
                   cost::step_price(cost),
                   {.keep_gradients = false, .overlap = plan_.cluster.local}));
  return {};
}

Result<std::shared_ptr<Planned>> Planned::make(const Request& request) {
  auto planned = std::make_shared<Planned>();
  SHARDPLAN_RETURN_IF_ERROR(planned->load(request));
  SHARDPLAN_ASSIGN_OR_RETURN(const cluster::Cluster machines,
                             cluster::load_cluster(request.cluster));
  Bytes memory = 0;
  if (!request.memory.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(memory, parse_bytes(request.memory));
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* planner,
                             planners::find_planner(request.planner));
  SHARDPLAN_ASSIGN_OR_RETURN(planners::PlanResult result,
                             planner->plan({.step = planned->step_,
                                            .recipe = planned->recipe_,
                                            .cluster = machines,
                                            .memory_limit = memory}));
  if (result.status == planners::SearchStatus::kInfeasible ||
      result.status == planners::SearchStatus::kNoPlanFound) {
    return Error{ErrorCode::kInfeasible, result.explanation, {}, {}};
  }
  planned->plan_ = std::move(result.best);
  planned->plan_.model = request.model;
  planned->plan_.binding = request.binding;
  SHARDPLAN_RETURN_IF_ERROR(planned->lower_plan());
  return planned;
}

Result<std::shared_ptr<Planned>> Planned::read(const Request& request,
                                               const std::string& plan_json) {
  auto planned = std::make_shared<Planned>();
  SHARDPLAN_RETURN_IF_ERROR(planned->load(request));
  SHARDPLAN_ASSIGN_OR_RETURN(planned->plan_, plan::from_json(plan_json, planned->step_, "plan"));
  SHARDPLAN_RETURN_IF_ERROR(planned->lower_plan());
  return planned;
}

Result<std::shared_ptr<Training>> Training::create(std::shared_ptr<Planned> planned,
                                                   std::int64_t rank,
                                                   std::uint64_t seed,
                                                   std::unique_ptr<runtime::GroupSource> groups) {
  auto training = std::make_shared<Training>();
  training->planned_ = std::move(planned);
  SHARDPLAN_ASSIGN_OR_RETURN(training->executor_,
                             runtime::Executor::create({training->planned_->step(),
                                                        training->planned_->program(),
                                                        rank,
                                                        seed,
                                                        groups.get(),
                                                        {}}));
  return training;
}

Result<double> Training::step(const std::map<std::string, at::Tensor>& batch) {
  const ir::Graph& graph = planned_->step();
  return executor_->run_step([&](ir::ValueId input, std::int64_t microbatch) {
    const ir::Value& value = graph.value(input);
    at::Tensor part = batch.at(training::input_of_whole_batch(value.name).value_or(value.name));
    for (std::int64_t d = 0; d < part.dim(); ++d) {
      // The dimension that microbatches cut is the one that the step has shorter.
      const std::int64_t length = value.type.shape[static_cast<std::size_t>(d)];
      if (length != part.size(d)) {
        part = part.narrow(d, microbatch * length, length);
      }
    }
    return part.to(runtime::scalar_type(value.type.dtype));
  });
}

std::vector<Training::Weight> Training::weights() const {
  std::vector<Weight> all;
  for (const ir::Value& value : planned_->step().values()) {
    if (value.kind != ir::ValueKind::kParameter && value.kind != ir::ValueKind::kBuffer) {
      continue;
    }
    Weight weight{{value.name}, value.module_shape.empty() ? value.type.shape : value.module_shape};
    weight.names.insert(weight.names.end(), value.aliases.begin(), value.aliases.end());
    all.push_back(std::move(weight));
  }
  return all;
}

ir::ValueId Training::find(const std::string& name) const {
  const ir::ValueId found = planned_->step().find_input(name);
  SHARDPLAN_CHECK(found.valid()) << "no weight " << name;
  return found;
}

at::Tensor Training::gather(const std::string& name) const {
  const ir::Graph& graph = planned_->step();
  ir::ValueId source = find(name);
  const ir::Value& weight = graph.value(source);
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].init_from == source) {
      source = ir::ValueId(i);
      break;
    }
  }
  const at::Tensor full = executor_->gather(executor_->resident(source), weight.type);
  return full.view(weight.module_shape.empty() ? weight.type.shape : weight.module_shape);
}

void Training::load(const std::string& name, const at::Tensor& full) {
  const ir::Graph& graph = planned_->step();
  const ir::ValueId weight = find(name);
  const at::Tensor shaped = full.reshape(graph.value(weight).type.shape);
  executor_->set_resident(weight, shaped);
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].init_from == weight) {
      executor_->set_resident(ir::ValueId(i), shaped);
    }
  }
}

std::vector<Training::Piece> Training::pieces() const {
  const ir::Graph& graph = planned_->step();
  std::vector<Piece> all;
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& value = graph.values()[i];
    if (value.kind != ir::ValueKind::kParameter && value.kind != ir::ValueKind::kBuffer &&
        value.kind != ir::ValueKind::kState) {
      continue;
    }
    const runtime::Executor::Part part = executor_->resident(ir::ValueId(i));
    Piece piece{value.name, value.kind, value.aliases, {}, value.type.shape, {}, {}, part.tensor};
    if (value.init_from.valid()) {
      piece.copy_of = graph.value(value.init_from).name;
    }
    // A moment is named after its parameter, and has its shape.
    const ir::ValueId owner = value.kind == ir::ValueKind::kState
                                  ? graph.find_input(value.name.substr(0, value.name.rfind('.')))
                                  : ir::ValueId(i);
    piece.module_shape = owner.valid() && graph.type(owner).shape == value.type.shape &&
                                 !graph.value(owner).module_shape.empty()
                             ? graph.value(owner).module_shape
                             : value.type.shape;
    // A tensor without memory, cut as the content is: its offset tells where the part begins.
    const at::Tensor whole = at::empty(value.type.shape, at::TensorOptions(at::kMeta));
    std::int64_t rest =
        runtime::shard_view(whole, part.spec, planned_->program().mesh, executor_->rank())
            .storage_offset();
    for (std::int64_t d = 0; d < whole.dim(); ++d) {
      piece.offsets.push_back(rest / whole.stride(d));
      rest %= whole.stride(d);
    }
    all.push_back(std::move(piece));
  }
  return all;
}

}  // namespace shardplan::python
