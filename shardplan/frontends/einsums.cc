// Products of every form as einsums that ours can say: each letter at most once an operand, and in
// two of the terms.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

using ir::IntList;
using ir::Shape;
using ir::ValueId;

namespace {

constexpr std::string_view kLetters =
    "bshtuvwxyzacdefgijlopqrBSHTUVWXYZACDEFGIJLOPQRMKN";  // m, k, n are those of the matrices

/// One operand with the letters of its dimensions.
struct Term {
  ValueId value;
  std::string letters;
};

Error wrong(const Builder& b, std::string why) {
  return invalid_input(std::move(why), b.layer());
}

bool has(std::string_view letters, char letter) {
  return letters.find(letter) != std::string_view::npos;
}

/// Without dimension `d`, which has size 1.
void drop(Builder& b, Term& term, std::size_t d) {
  Shape shape = b.type(term.value).shape;
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d));
  term.letters.erase(d, 1);
  term.value = reshape_to(b, term.value, shape);
}

/// Sums over the letters that are in `term` only.
void sum_alone(Builder& b, Term& term, std::string_view others) {
  IntList dims;
  std::string rest;
  for (std::size_t d = 0; d < term.letters.size(); ++d) {
    if (has(others, term.letters[d])) {
      rest += term.letters[d];
    } else {
      dims.push_back(static_cast<std::int64_t>(d));
    }
  }
  if (!dims.empty()) {
    term.value = b.emit("sum", {term.value}, {{"dims", dims}, {"keepdim", false}});
    term.letters = rest;
  }
}

/// A letter that occurs twice in a term stands for the diagonal.
void take_diagonals(Builder& b, Term& term) {
  for (std::size_t d = 0; d < term.letters.size() && b.ok();) {
    const std::size_t again = term.letters.find(term.letters[d], d + 1);
    if (again == std::string::npos) {
      ++d;
      continue;
    }
    const Shape shape = b.type(term.value).shape;
    if (shape[d] != shape[again]) {
      b.fail(wrong(b, fmt::format("'{}' has two sizes in an einsum", term.letters[d])));
      return;
    }
    Shape mask_shape(shape.size(), 1);
    mask_shape[d] = shape[d];
    mask_shape[again] = shape[d];
    const ValueId mask = reshape_to(b, band_mask(b, shape[d], shape[d], 0, 0), mask_shape);
    const ValueId zero = b.emit("full",
                                {},
                                {{"shape", IntList{}},
                                 {"value", 0.0},
                                 {"dtype", std::string(ir::dtype_name(b.type(term.value).dtype))}});
    const ValueId diagonal = b.emit("where", {mask, term.value, zero});
    term.value = b.emit("sum",
                        {diagonal},
                        {{"dims", IntList{static_cast<std::int64_t>(again)}}, {"keepdim", false}});
    term.letters.erase(again, 1);
  }
}

/// The dimensions of one term in another order.
ValueId ordered_as(Builder& b, const Term& term, std::string_view letters) {
  IntList permutation;
  for (const char letter : letters) {
    permutation.push_back(static_cast<std::int64_t>(term.letters.find(letter)));
  }
  return term.letters == letters ? term.value : permuted(b, term.value, permutation);
}

/// The product of two terms with the letters of `kept`, in order of first appearance.
Term multiply(Builder& b, Term x, Term y, std::string_view kept) {
  for (std::size_t d = 0; d < x.letters.size() && b.ok();) {
    // Of a dimension that has size 1 on one side, the other side alone decides.
    const std::size_t e = y.letters.find(x.letters[d]);
    const std::int64_t own = b.type(x.value).shape[d];
    if (e != std::string::npos && own != b.type(y.value).shape[e]) {
      if (own == 1) {
        drop(b, x, d);
        continue;
      }
      if (b.type(y.value).shape[e] == 1) {
        drop(b, y, e);
      }
    }
    ++d;
  }
  sum_alone(b, x, y.letters + std::string(kept));
  sum_alone(b, y, x.letters + std::string(kept));
  std::string result;
  for (const char letter : x.letters + y.letters) {
    if (has(kept, letter) && !has(result, letter)) {
      result += letter;
    }
  }
  // The order that the caller wants saves a transpose.
  const auto wanted = [&] {
    std::string order;
    std::copy_if(kept.begin(), kept.end(), std::back_inserter(order), [&](char letter) {
      return has(result, letter);
    });
    return order;
  };
  result = wanted();
  const ValueId value = b.emit(
      "einsum", {x.value, y.value}, {{"equation", x.letters + "," + y.letters + "->" + result}});
  return {value, result};
}

/// The letters of each operand and of the result, "..." replaced by letters that are not used.
struct Parsed {
  std::vector<std::string> operands;
  std::string result;
};

/// Replaces "..." by the last `count` of `spare`.
bool fill_dots(std::string& term, std::size_t count, const std::string& spare) {
  const std::size_t at = term.find("...");
  if (at == std::string::npos) {
    return term.find('.') == std::string::npos;
  }
  if (count > spare.size()) {
    return false;
  }
  term.replace(at, 3, spare.substr(spare.size() - count));
  return term.find('.') == std::string::npos;
}

/// Letters that the equation does not use, as many as the longest "..." stands for.
std::string spare_letters(const std::string& equation, std::size_t count) {
  std::string spare;
  for (const char letter : kLetters) {
    if (spare.size() < count && !has(equation, letter)) {
      spare += letter;
    }
  }
  return spare;
}

/// Without "->" the result has the letters that occur once, in alphabetical order.
std::string implied_result(const std::vector<std::string>& operands, const std::string& spare) {
  std::string all;
  for (const std::string& operand : operands) {
    all += operand;
  }
  std::string once;
  for (const char letter : all) {
    if (std::count(all.begin(), all.end(), letter) == 1 && !has(spare, letter)) {
      once += letter;
    }
  }
  std::sort(once.begin(), once.end());
  return spare + once;
}

std::optional<Parsed> parse(const Builder& b,
                            std::string equation,
                            const std::vector<ValueId>& operands) {
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->");
  Parsed out;
  const std::string left = equation.substr(0, arrow);
  for (std::size_t start = 0; start <= left.size();) {
    const std::size_t end = std::min(left.find(',', start), left.size());
    out.operands.push_back(left.substr(start, end - start));
    start = end + 1;
  }
  if (out.operands.size() != operands.size()) {
    return std::nullopt;
  }
  std::vector<std::size_t> counts;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::size_t rank = b.type(operands[i]).shape.size();
    const bool dots = has(out.operands[i], '.');
    const std::size_t named = out.operands[i].size() - (dots ? 3 : 0);
    if (out.operands[i].size() < (dots ? 3U : 0U) || named > rank || (!dots && named != rank)) {
      return std::nullopt;
    }
    counts.push_back(rank - named);
    longest = std::max(longest, rank - named);
  }
  const std::string spare = spare_letters(equation, longest);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!fill_dots(out.operands[i], counts[i], spare)) {
      return std::nullopt;
    }
  }
  out.result =
      arrow == std::string::npos ? implied_result(out.operands, spare) : equation.substr(arrow + 2);
  if (!fill_dots(out.result, longest, spare)) {
    return std::nullopt;
  }
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  for (const std::string& term : out.operands) {
    if (!std::all_of(term.begin(), term.end(), is_letter)) {
      return std::nullopt;
    }
  }
  for (std::size_t i = 0; i < out.result.size(); ++i) {
    const bool known = std::any_of(out.operands.begin(), out.operands.end(), [&](const auto& term) {
      return has(term, out.result[i]);
    });
    if (!known || has(out.result.substr(i + 1), out.result[i])) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace

ValueId einsum(Builder& b, const std::string& equation, const std::vector<ValueId>& operands) {
  if (!b.ok()) {
    return {};
  }
  const std::optional<Parsed> parsed = parse(b, equation, operands);
  if (!parsed.has_value() || operands.empty()) {
    b.fail(wrong(b, fmt::format("the equation \"{}\" does not fit its operands", equation)));
    return {};
  }
  std::vector<Term> terms;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    terms.push_back({operands[i], parsed->operands[i]});
    take_diagonals(b, terms.back());
  }
  Term whole = terms.front();
  for (std::size_t i = 1; i < terms.size() && b.ok(); ++i) {
    std::string kept = parsed->result;
    for (std::size_t later = i + 1; later < terms.size(); ++later) {
      for (const char letter : terms[later].letters) {
        kept += has(kept, letter) ? "" : std::string(1, letter);
      }
    }
    whole = multiply(b, whole, terms[i], kept);
  }
  if (b.ok()) {
    sum_alone(b, whole, parsed->result);
  }
  return b.ok() ? ordered_as(b, whole, parsed->result) : ValueId{};
}

ValueId matmul(Builder& b, ValueId x, ValueId y) {
  if (!b.ok()) {
    return {};
  }
  const std::size_t left = b.type(x).shape.size();
  const std::size_t right = b.type(y).shape.size();
  const std::size_t batch = std::max({left, right, std::size_t{2}}) - 2;
  if (left == 0 || right == 0 || batch > 23) {
    b.fail(wrong(b,
                 fmt::format("a matrix product of {} and {} does not exist",
                             to_string(b.type(x)),
                             to_string(b.type(y)))));
    return {};
  }
  const std::string letters(kLetters.substr(0, batch));
  const auto batch_of = [&](std::size_t rank) {
    return rank < 2 ? std::string() : letters.substr(batch - (rank - 2));
  };
  const std::string a = batch_of(left) + (left == 1 ? "k" : "mk");
  const std::string c = batch_of(right) + (right == 1 ? "k" : "kn");
  const std::string result = letters + (left == 1 ? "" : "m") + (right == 1 ? "" : "n");
  return einsum(b, a + "," + c + "->" + result, {x, y});
}

}  // namespace shardplan::frontends
