#include <fmt/format.h>

#include <iterator>

#include "shardplan/lower/program.h"

namespace shardplan::lower {
namespace {

void print_ids(std::string& out, const std::vector<LocalId>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}%{}", i == 0 ? "" : ", ", ids[i].value);
  }
}

std::string axis_list(const std::vector<int>& axes, const cluster::DeviceMesh& mesh) {
  std::string out;
  for (const int axis : axes) {
    out += (out.empty() ? "" : "·") + mesh.axes[static_cast<std::size_t>(axis)].name;
  }
  return out;
}

void print_value(std::string& out, const Program& program, LocalId id) {
  const LocalValue& value = program.value(id);
  fmt::format_to(std::back_inserter(out),
                 "%{} : {} {}",
                 id.value,
                 ir::to_string(value.type),
                 to_string(value.spec, value.type.shape.size(), program.mesh));
  if (value.view_of.valid()) {
    fmt::format_to(std::back_inserter(out), " in %{}", value.view_of.value);
  }
}

void print_step(std::string& out,
                const Program& program,
                const ir::Graph& graph,
                const Step& step) {
  out += "  ";
  switch (step.kind) {
    case StepKind::kFree:
      out += "free ";
      print_ids(out, step.inputs);
      break;
    case StepKind::kWait:
      out += "wait ";
      print_ids(out, step.inputs);
      break;
    case StepKind::kWrite:
      fmt::format_to(
          std::back_inserter(out), "write %{} <- %{}", step.outputs[0].value, step.inputs[0].value);
      break;
    case StepKind::kCompute:
    case StepKind::kCollective:
      for (std::size_t i = 0; i < step.outputs.size(); ++i) {
        out += i == 0 ? "" : ", ";
        print_value(out, program, step.outputs[i]);
      }
      if (step.kind == StepKind::kCompute) {
        out += fmt::format(" = {}(", graph.op(step.op).name);
      } else {
        out += fmt::format(" = {}[{}](",
                           sharding::collective_name(step.collective.kind),
                           axis_list(step.collective.axes, program.mesh));
      }
      print_ids(out, step.inputs);
      out += ")";
      if (step.recompute) {
        out += " recompute";
      }
      if (step.aside) {
        out += " aside";
      }
      break;
  }
  out += "\n";
}

}  // namespace

std::string print(const Program& program, const ir::Graph& step) {
  std::string out = fmt::format("program on {}\n", cluster::to_string(program.mesh));
  for (const Resident& resident : program.residents) {
    out += "  resident ";
    print_value(out, program, resident.local);
    out += fmt::format(" \"{}\"\n", step.value(resident.global).name);
  }
  out += fmt::format("microbatch × {}\n", program.microbatches);
  for (const Step& s : program.microbatch) {
    print_step(out, program, step, s);
  }
  out += "update\n";
  for (const Step& s : program.update) {
    print_step(out, program, step, s);
  }
  return out;
}

}  // namespace shardplan::lower
