#include "shardplan/python/planned.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "shardplan/cost/cost_model.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/executor.h"
#include "shardplan/runtime/pipeline.h"
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
  if (plan_.pipeline) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        pipeline_, lower::lower_pipeline(step_, plan_, [](const plan::Plan& stage) {
          return cost::step_price(cost::CostModel(stage.cluster, stage.mesh));
        }));
    return {};
  }
  const cost::CostModel cost(plan_.cluster, plan_.mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(
      program_,
      lower::lower(step_,
                   plan_,
                   cost::step_price(cost),
                   {.keep_gradients = false, .overlap = plan_.cluster.local}));
  return {};
}

std::vector<runtime::NeededGroup> Planned::needed_groups() const {
  if (pipeline_) {
    return runtime::needed_groups(*pipeline_);
  }
  std::vector<runtime::NeededGroup> all;
  for (runtime::Ranks& ranks : runtime::needed_groups(program_)) {
    all.push_back({std::move(ranks), ""});
  }
  return all;
}

namespace {

Result<StageExplanation> explain_one(const plan::Plan& plan, const ir::Graph& step) {
  StageExplanation out;
  for (const cluster::MeshAxis& axis : plan.mesh.axes) {
    out.mesh.emplace_back(axis.name, axis.size);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(out.layers, planners::explain(plan, step));
  return out;
}

}  // namespace

Result<std::vector<StageExplanation>> Planned::explain() const {
  std::vector<StageExplanation> all;
  if (!plan_.pipeline || !pipeline_) {
    SHARDPLAN_ASSIGN_OR_RETURN(StageExplanation one, explain_one(plan_, step_));
    all.push_back(std::move(one));
    return all;
  }
  for (std::size_t s = 0; s < plan_.pipeline->stages.size(); ++s) {
    SHARDPLAN_ASSIGN_OR_RETURN(StageExplanation one,
                               explain_one(plan_.pipeline->stages[s], pipeline_->stages[s].graph));
    all.push_back(std::move(one));
  }
  return all;
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
  const Planned& made = *training->planned_;
  if (const std::optional<lower::PipelineProgram>& pipeline = made.pipeline()) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        training->trainer_,
        runtime::PipelineTrainer::create({*pipeline, rank, seed, groups.get(), {}}));
    if (training->trainer_->steps_a_run() != 1) {
      return Error{ErrorCode::kUnsupported,
                   "schedule " + pipeline->schedule.name + " trains " +
                       std::to_string(training->trainer_->steps_a_run()) +
                       " steps without a flush, and a call trains on one batch",
                   "parallelize",
                   {"take a synchronous schedule, such as 1f1b"}};
    }
    return training;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(
      std::unique_ptr<runtime::Executor> executor,
      runtime::Executor::create({made.step(), made.program(), rank, seed, groups.get(), {}}));
  training->trainer_ = std::move(executor);
  return training;
}

Result<double> Training::step(const std::map<std::string, at::Tensor>& batch) {
  const ir::Graph& graph = planned_->step();
  return trainer_->run_step([&](ir::ValueId input, std::int64_t microbatch) {
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
  const std::vector<runtime::LocatedPart> all = trainer_->residents();
  const auto located =
      std::find_if(all.begin(), all.end(), [&](const auto& part) { return part.value == source; });
  SHARDPLAN_CHECK(located != all.end()) << "nobody holds " << name;
  const at::Tensor full = runtime::gather(*trainer_, *located, graph.type(source));
  return full.view(weight.module_shape.empty() ? weight.type.shape : weight.module_shape);
}

void Training::load(const std::string& name, const at::Tensor& full) {
  const ir::Graph& graph = planned_->step();
  const ir::ValueId weight = find(name);
  const at::Tensor shaped = full.reshape(graph.value(weight).type.shape);
  trainer_->set_resident(weight, shaped);
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].init_from == weight) {
      trainer_->set_resident(ir::ValueId(i), shaped);
    }
  }
}

Training::Piece Training::piece_of(ir::ValueId id, const runtime::LocatedPart& located) const {
  const ir::Graph& graph = planned_->step();
  const ir::Value& value = graph.value(id);
  Piece piece{value.name, value.kind, value.aliases, {}, value.type.shape, {}, {}, {}};
  if (value.init_from.valid()) {
    piece.copy_of = graph.value(value.init_from).name;
  }
  // A moment is named after its parameter, and has its shape.
  const ir::ValueId owner = value.kind == ir::ValueKind::kState
                                ? graph.find_input(value.name.substr(0, value.name.rfind('.')))
                                : id;
  piece.module_shape = owner.valid() && graph.type(owner).shape == value.type.shape &&
                               !graph.value(owner).module_shape.empty()
                           ? graph.value(owner).module_shape
                           : value.type.shape;
  if (!located.part.tensor.defined()) {
    piece.part = at::empty({0}, runtime::scalar_type(value.type.dtype));
    return piece;
  }
  piece.part = located.part.tensor;
  // A tensor without memory, cut as the content is: its offset tells where the part begins.
  const at::Tensor whole = at::empty(value.type.shape, at::TensorOptions(at::kMeta));
  std::int64_t rest =
      runtime::shard_view(
          whole, located.part.spec, *located.mesh, trainer_->rank() - located.first_rank)
          .storage_offset();
  for (std::int64_t d = 0; d < whole.dim(); ++d) {
    piece.offsets.push_back(rest / whole.stride(d));
    rest %= whole.stride(d);
  }
  return piece;
}

std::vector<Training::Piece> Training::pieces(bool saving) const {
  const ir::Graph& graph = planned_->step();
  const std::vector<runtime::LocatedPart> residents = trainer_->residents();
  std::vector<Piece> all;
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    const ir::ValueId id(i);
    if (!runtime::lives_on(graph.value(id))) {
      continue;
    }
    std::size_t found = 0;
    for (const runtime::LocatedPart& located : residents) {
      const bool here = located.part.tensor.defined();
      if (located.value == id && (found == 0 || (here && !saving))) {
        all.push_back(piece_of(id, located));
        ++found;
      }
    }
    SHARDPLAN_CHECK(found > 0) << "nobody holds " << graph.value(id).name;
  }
  return all;
}

}  // namespace shardplan::python
