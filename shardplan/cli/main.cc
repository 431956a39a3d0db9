// The program `shardplan`: reads the command line, runs one command, turns its outcome into an exit
// code. 0 done, 1 the answer is no (nothing fits, not equal), 2 wrong use or input.

#include <fmt/format.h>
#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "shardplan/cli/command.h"
#include "shardplan/cli/session.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {
namespace {

constexpr auto kCommands = std::to_array<Command>({
    {"profile",
     "parameters, FLOPs, saved activations and true peak of a training step, without running it",
     "shardplan profile gpt:layers=12,hidden=768",
     add_profile},
    {"plan",
     "find the fastest plan that fits the memory",
     "shardplan plan model.pt2 --cluster 8xA100-80GB --optimizer adamw --precision bf16 -o "
     "plan.json",
     add_plan},
    {"compare",
     "plans of several planners side by side, by one simulator",
     "shardplan compare gpt --cluster 8xA100-80GB --planners dp,zero3,megatron,map",
     add_compare},
    {"explain",
     "what a plan chose for each block, what it costs, and the next best choice",
     "shardplan explain plan.json",
     add_explain},
    {"simulate",
     "time and memory of a plan on its cluster; a timeline for Perfetto",
     "shardplan simulate plan.json --trace trace.json",
     add_simulate},
    {"check-plan",
     "count a plan's time and bytes anew, without the search or the simulator, and compare",
     "shardplan check-plan plan.json",
     add_check_plan},
    {"run",
     "train with a plan: starts the local processes, or joins those of torchrun",
     "shardplan run plan.json --verify --steps 3",
     add_run},
    {"predict",
     "time and memory of a Megatron-LM run by formulas alone, or the best of all its "
     "configurations",
     "shardplan predict --model gpt3-175b --cluster dgx-a100:8 --tp 8 --pp 8 --interleave 3 "
     "--batch 64 --recompute selective --sequence-parallel",
     add_predict},
    {"probe",
     "measure this machine and write a cluster file",
     "shardplan probe --ranks 4 -o here.yaml",
     add_probe},
    {"problem",
     "write the problem that planning on one mesh poses, to be solved or looked at outside",
     "shardplan problem gpt --cluster 8xA100-80GB --mesh data=2,tensor=4 -o problem.json",
     add_problem},
    {"solve",
     "solve a problem file: one choice for each node, least cost within the memory limits",
     "shardplan solve problem.json --memory-limit 20GiB",
     add_solve},
    {"schedule",
     "who does what, when, in a pipeline: draws a schedule, or lists them all",
     "shardplan schedule 1f1b --stages 4 --microbatches 8",
     add_schedule},
    {"zoo", "models that need no file", "shardplan zoo", add_zoo},
    {"planners",
     "the planners, with the papers that they come from",
     "shardplan planners",
     add_planners},
    {"solvers", "the solvers of problem files", "shardplan solvers", add_solvers},
    {"clusters", "the clusters that are known by name", "shardplan clusters", add_clusters},
});

/// Whether a word is an option rather than a value ("-1" is a number).
bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word != "--" &&
         std::string_view("0123456789.").find(word[1]) == std::string_view::npos;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  const std::string close = suggest(name, known);
  return close.empty() ? "." : fmt::format("; did you mean '{}'?", close);
}

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  const auto named =
      app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  return named.empty() ? nullptr : named.front();
}

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

/// Spelling of the command and of its options, before CLI11 complains of what is missing.
Status check_words(const CLI::App& app, const std::vector<std::string>& words) {
  const auto command = std::find_if_not(words.begin(), words.end(), is_option);
  const CLI::App* sub = &app;
  if (command != words.end()) {
    sub = find_command(app, *command);
    if (sub == nullptr) {
      std::vector<std::string> names;
      names.reserve(kCommands.size());
      for (const Command& known : kCommands) {
        names.emplace_back(known.name);
      }
      return invalid_input(fmt::format("unknown command '{}'{} List them with: shardplan --help",
                                       *command,
                                       did_you_mean(*command, names)));
    }
  }
  for (auto word = words.begin(); word != words.end() && *word != "--"; ++word) {
    const bool is_long = word->starts_with("--");
    const std::string name = is_long ? word->substr(0, word->find('=')) : word->substr(0, 2);
    const CLI::App& owner = word < command ? app : *sub;
    if (is_option(*word) && owner.get_option_no_throw(name) == nullptr) {
      return invalid_input(fmt::format("unknown option '{}'{} See: shardplan {}--help",
                                       name,
                                       did_you_mean(name, long_options(*sub)),
                                       sub == &app ? "" : sub->get_name() + " "));
    }
  }
  return {};
}

/// One line, whatever text of a damaged file the message quotes.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    out += code < 0x20 || code == 0x7f ? fmt::format("\\x{:02x}", code) : std::string(1, c);
  }
  return out;
}

/// An empty value is nearly always a shell variable that is not set: the default in its place would
/// answer another question.
Status check_values(const CLI::App& sub) {
  for (const CLI::Option* option : sub.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") != values.end()) {
      return invalid_input(
          fmt::format("has an empty value; give it one, or leave it out (shardplan "
                      "{} --help)",
                      sub.get_name()),
          option->get_name());
    }
  }
  return {};
}

/// What CLI11 found wrong, in words that say what to do.
Error parse_error(const CLI::ParseError& wrong) {
  const std::string_view said = wrong.what();
  constexpr std::string_view kNoNumber = "Could not convert: ";
  const std::size_t equals = said.find(" = ");
  if (!said.starts_with(kNoNumber) || equals == std::string_view::npos) {
    return invalid_input(std::string(said));
  }
  return invalid_input(fmt::format("'{}' is no number that it can take", said.substr(equals + 3)),
                       std::string(said.substr(kNoNumber.size(), equals - kNoNumber.size())));
}

int report(const Error& error) {
  clear_progress();
  fmt::print(stderr, "error: {}\n", printable(error.text()));
  return error.code == ErrorCode::kInfeasible || error.code == ErrorCode::kNotEqual ? 1 : 2;
}

int main_with(const std::vector<std::string>& words) {
  CLI::App app("Shardplan: plans for training a model on many devices, proven by running them.",
               "shardplan");
  app.set_version_flag("--version", "shardplan " SHARDPLAN_VERSION);
  app.require_subcommand(1);
  app.footer("Help on one of them: shardplan COMMAND --help");

  Session session;
  session.arguments = words;
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    actions.emplace_back(sub, command.add(*sub));
    sub->add_flag("--json", session.json, "one JSON object on standard output, for scripts");
    sub->footer(fmt::format("Example:\n  {}", command.example));
  }
  if (words.empty()) {
    fmt::print(stderr, "{}", app.help());
    return 2;
  }
  if (const Status spelled = check_words(app, words); !spelled) {
    return report(spelled.error());
  }
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    app.parse(reversed);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& wrong) {
    return report(parse_error(wrong));
  }
  session.control = watch_terminal();
  for (const auto& [sub, action] : actions) {
    if (sub->parsed()) {
      if (const Status given = check_values(*sub); !given) {
        return report(given.error());
      }
      const Result<int> done = action(session);
      clear_progress();
      if (!done) {
        return report(done.error());
      }
      if (std::fflush(stdout) != 0) {
        return report(Error{ErrorCode::kIo, "cannot write to standard output", "", {}});
      }
      return *done;
    }
  }
  return 2;
}

}  // namespace
}  // namespace shardplan::cli

int main(int argc, char** argv) {
#ifdef M_MMAP_THRESHOLD
  // Planning makes and drops tables of many megabytes: keeping their memory saves a fifth of its
  // time, which would go to clearing fresh pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  try {
    return shardplan::cli::main_with(
        std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const std::exception& unexpected) {
    // Rooms report errors as values: what still arrives here is the machine's, such as no memory.
    // What is printed piece by piece fails in the middle, with words that name no file.
    std::fprintf(stderr,
                 "error: %s\n",
                 std::ferror(stdout) != 0 ? "cannot write to standard output" : unexpected.what());
    return 2;
  }
}
