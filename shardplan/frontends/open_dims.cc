#include "shardplan/frontends/open_dims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardplan/support/text.h"

namespace shardplan::frontends {

namespace {

class Binder {
 public:
  Binder(const OpenDims& open, const std::string& where) : open_(open), where_(where) {
    for (const OpenDim& dim : open_.places) {
      for (const std::string& symbol : symbols_of(dim.expression)) {
        if (std::find(symbols_.begin(), symbols_.end(), symbol) == symbols_.end()) {
          symbols_.push_back(symbol);
        }
      }
    }
  }

  Result<SymbolValues> run(const std::map<std::string, std::int64_t>& dims) {
    for (const auto& [name, size] : dims) {
      SHARDPLAN_RETURN_IF_ERROR(check_name(name));
      for (const std::string& symbol : symbols_) {
        if (name == symbol || name == name_of(symbol)) {
          SHARDPLAN_RETURN_IF_ERROR(bind(symbol, size));
        }
      }
    }
    for (const OpenDim& dim : open_.places) {
      const auto given = dims.find(dim.place);
      if (given != dims.end()) {
        SHARDPLAN_RETURN_IF_ERROR(bind_place(dim, given->second));
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(check_complete());
    SHARDPLAN_RETURN_IF_ERROR(check_ranges());
    SHARDPLAN_RETURN_IF_ERROR(check_guards());
    return std::move(values_);
  }

 private:
  [[nodiscard]] std::string name_of(const std::string& symbol) const {
    const auto found = open_.names.find(symbol);
    return found == open_.names.end() ? symbol : found->second;
  }

  /// The names under which the user binds the symbols, each once.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const std::string& symbol : symbols_) {
      const std::string name = name_of(symbol);
      if (std::find(out.begin(), out.end(), name) == out.end()) {
        out.push_back(name);
      }
    }
    return out;
  }

  [[nodiscard]] Status check_name(const std::string& name) const {
    std::vector<std::string> known = names();
    const std::string list = fmt::format("{}", fmt::join(known, ", "));
    known.insert(known.end(), symbols_.begin(), symbols_.end());
    for (const OpenDim& dim : open_.places) {
      known.push_back(dim.place);
    }
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      return {};
    }
    Error error = invalid_input(fmt::format("the model has no open dimension '{}'", name), where_);
    const std::string close = suggest(name, known);
    if (!close.empty()) {
      error.notes.push_back(fmt::format("did you mean '{}'?", close));
    } else if (known.empty()) {
      error.notes.emplace_back("all its dimensions are fixed");
    } else {
      error.notes.push_back(fmt::format("its open dimensions are {}", list));
      describe_all(error);
    }
    return error;
  }

  Status bind(const std::string& symbol, std::int64_t size) {
    const auto [found, is_new] = values_.emplace(symbol, size);
    if (is_new || found->second == size) {
      return {};
    }
    return invalid_input(
        fmt::format(
            "--dim gives '{}' the size {} and the size {}", name_of(symbol), found->second, size),
        where_);
  }

  /// Solves for the one symbol that has no value yet. Sizes of inputs are linear in practice; what
  /// is not is seen when the solution is put in.
  Status bind_place(const OpenDim& dim, std::int64_t size) {
    std::vector<std::string> free;
    for (const std::string& symbol : symbols_of(dim.expression)) {
      if (!values_.contains(symbol)) {
        free.push_back(symbol);
      }
    }
    SymbolValues trial = values_;
    const auto at = [&](std::int64_t value) {
      trial[free.front()] = value;
      return whole_size(dim.expression, trial);
    };
    if (free.size() == 1) {
      const std::optional<std::int64_t> zero = at(0);
      const std::optional<std::int64_t> one = at(1);
      std::int64_t slope = 0;
      std::int64_t rise = 0;
      if (zero.has_value() && one.has_value() && !__builtin_sub_overflow(*one, *zero, &slope) &&
          !__builtin_sub_overflow(size, *zero, &rise) && slope > 0 && at(rise / slope) == size) {
        return bind(free.front(), rise / slope);
      }
    } else if (free.empty() && whole_size(dim.expression, values_) == size) {
      return {};
    }
    return invalid_input(fmt::format("{} is {}, which cannot be {}{}",
                                     dim.place,
                                     readable(dim.expression),
                                     size,
                                     free.empty() ? " with the other sizes given" : ""),
                         where_);
  }

  [[nodiscard]] Status check_complete() const {
    std::vector<std::string> missing;
    for (const std::string& symbol : symbols_) {
      const std::string name = name_of(symbol);
      if (!values_.contains(symbol) &&
          std::find(missing.begin(), missing.end(), name) == missing.end()) {
        missing.push_back(name);
      }
    }
    if (missing.empty()) {
      return {};
    }
    std::string flags;
    for (const std::string& name : missing) {
      flags += fmt::format(" --dim {}=N", name);
    }
    Error error = invalid_input(fmt::format("leaves the {} {} open",
                                            missing.size() == 1 ? "dimension" : "dimensions",
                                            fmt::join(missing, ", ")),
                                where_);
    error.notes.push_back(
        fmt::format("give {} a size:{}", missing.size() == 1 ? "it" : "each", flags));
    describe_all(error);
    return error;
  }

  [[nodiscard]] Status check_ranges() const {
    for (const SizeRange& range : open_.ranges) {
      const std::optional<std::int64_t> size = whole_size(range.expression, values_);
      if (size.has_value() &&
          (*size < range.least.value_or(*size) || *size > range.most.value_or(*size))) {
        return invalid_input(fmt::format("{} is {}, and the model was exported for {}",
                                         readable(range.expression),
                                         *size,
                                         range_text(range)),
                             where_);
      }
    }
    for (const OpenDim& dim : open_.places) {
      const std::optional<std::int64_t> size = whole_size(dim.expression, values_);
      if (!size.has_value() || (*size < 1 && symbols_of(dim.expression).size() > 0)) {
        return invalid_input(
            fmt::format("{} is {}, which is no size of at least 1 with the sizes given",
                        dim.place,
                        readable(dim.expression)),
            where_);
      }
    }
    return {};
  }

  [[nodiscard]] Status check_guards() const {
    SymbolValues by_place = values_;
    for (const OpenDim& dim : open_.places) {
      if (const std::optional<std::int64_t> size = whole_size(dim.expression, values_)) {
        by_place[dim.place] = *size;
      }
    }
    for (const std::string& guard : open_.guards) {
      const std::optional<Number> holds = evaluate_size(guard, by_place);
      if (holds.has_value() && holds->as_double() == 0) {
        std::string sizes;
        for (const std::string& symbol : symbols_) {
          sizes += fmt::format(
              "{}{}={}", sizes.empty() ? "" : ", ", name_of(symbol), values_.at(symbol));
        }
        Error error = invalid_input(
            fmt::format(
                "what the export traced holds only where {}, not for {}", readable(guard), sizes),
            where_);
        error.notes.emplace_back("export it again with an example of these sizes");
        return error;
      }
    }
    return {};
  }

  /// Nothing has fewer elements than one.
  static std::string range_text(const SizeRange& range) {
    const std::int64_t least = std::max<std::int64_t>(range.least.value_or(1), 1);
    return range.most.has_value() ? fmt::format("{} to {}", least, *range.most)
                                  : fmt::format("at least {}", least);
  }

  /// One note for each name: which dimensions it stands for, and what it may be.
  void describe_all(Error& error) const {
    for (const std::string& name : names()) {
      error.notes.push_back(described(name));
    }
  }

  [[nodiscard]] std::string described(const std::string& name) const {
    std::vector<std::string> places;
    std::string example;
    std::string range;
    for (const OpenDim& dim : open_.places) {
      const std::vector<std::string> own = symbols_of(dim.expression);
      if (std::none_of(own.begin(), own.end(), [&](const auto& s) { return name_of(s) == name; })) {
        continue;
      }
      const std::string text = readable(dim.expression);
      places.push_back(text == name ? dim.place : fmt::format("{} ({})", dim.place, text));
      if (text == name && dim.example.has_value()) {
        example = fmt::format(", {} in the example", *dim.example);
      }
    }
    for (const SizeRange& entry : open_.ranges) {
      if (readable(entry.expression) == name &&
          (entry.least.has_value() || entry.most.has_value())) {
        range = ", " + range_text(entry);
      }
    }
    return fmt::format("{}: {}{}{}", name, fmt::join(places, ", "), range, example);
  }

  /// The expression for people: symbols by their names, constructors of sympy as they are.
  [[nodiscard]] std::string readable(const std::string& expression) const {
    std::string out;
    for (std::size_t at = 0; at < expression.size();) {
      const std::string_view rest = std::string_view(expression).substr(at);
      const std::optional<Symbol> symbol = symbol_at(rest);
      if (symbol.has_value()) {
        out += symbol->name;
        at += symbol->length;
        continue;
      }
      out += expression[at++];
    }
    return out;
  }

  struct Symbol {
    std::string name;
    std::size_t length = 0;
  };

  static bool is_name_character(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }

  /// Symbol('s24', ...), Integer(2), L['ids'].size()[1] or a bare s24 at the begin of `text`.
  [[nodiscard]] std::optional<Symbol> symbol_at(std::string_view text) const {
    constexpr std::string_view kSymbol = "Symbol('";
    constexpr std::string_view kInteger = "Integer(";
    constexpr std::string_view kInput = "L['";
    constexpr std::string_view kSize = "'].size()[";
    if (text.starts_with(kSymbol)) {
      const std::size_t quote = text.find('\'', kSymbol.size());
      const std::size_t end = text.find(')');
      if (quote != std::string_view::npos && end != std::string_view::npos && quote < end) {
        return Symbol{name_of(std::string(text.substr(kSymbol.size(), quote - kSymbol.size()))),
                      end + 1};
      }
    }
    if (text.starts_with(kInteger)) {
      const std::size_t end = text.find(')');
      if (end != std::string_view::npos) {
        return Symbol{std::string(text.substr(kInteger.size(), end - kInteger.size())), end + 1};
      }
    }
    if (text.starts_with(kInput)) {
      const std::size_t size = text.find(kSize);
      const std::size_t end = text.find(']', size == std::string_view::npos ? 0 : size + 2);
      if (size != std::string_view::npos && end != std::string_view::npos) {
        const std::size_t number = size + kSize.size();
        return Symbol{fmt::format("{}.{}",
                                  text.substr(kInput.size(), size - kInput.size()),
                                  text.substr(number, end - number)),
                      end + 1};
      }
    }
    std::size_t end = 0;
    while (end < text.size() && is_name_character(text[end])) {
      ++end;
    }
    return end == 0 ? std::nullopt
                    : std::optional(Symbol{name_of(std::string(text.substr(0, end))), end});
  }

  const OpenDims& open_;
  const std::string& where_;
  std::vector<std::string> symbols_;
  SymbolValues values_;
};

}  // namespace

Result<SymbolValues> bind_dims(const OpenDims& open,
                               const std::map<std::string, std::int64_t>& dims,
                               const std::string& where) {
  return Binder(open, where).run(dims);
}

}  // namespace shardplan::frontends
