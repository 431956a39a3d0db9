// lower::pieces against a count of every element of every part.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/lower/pipeline.h"
#include "tests/sharding/layout_testing.h"

namespace shardplan::lower {
namespace {

using sharding::ShardingSpec;

struct End {
  cluster::DeviceMesh mesh{};
  ShardingSpec spec{};
};

/// One message from a stage to the next.
PipelineProgram program_of(const ir::Shape& shape, const End& from, const End& to) {
  PipelineProgram program;
  program.schedule.devices = 2;
  program.schedule.stages = 2;
  program.schedule.device_of = {{0, 1}};
  program.first_rank = {0, from.mesh.size(), from.mesh.size() + to.mesh.size()};
  for (const End* const end : {&from, &to}) {
    Program of_stage;
    of_stage.mesh = end->mesh;
    LocalValue value;
    value.spec = end->spec;
    of_stage.values = {value};
    program.programs.push_back(std::move(of_stage));
  }
  Link link;
  link.from = 0;
  link.to = 1;
  link.type = {ir::DType::kFloat32, shape};
  link.sent = LocalId{0};
  link.received = LocalId{0};
  program.links = {link};
  return program;
}

/// Row-major numbers of the elements in a box.
std::set<std::int64_t> elements(const std::vector<sharding::Range>& box, const ir::Shape& shape) {
  std::set<std::int64_t> found{0};
  for (std::size_t d = 0; d < box.size(); ++d) {
    std::set<std::int64_t> next;
    for (const std::int64_t before : found) {
      for (std::int64_t i = box[d].start; i < box[d].start + box[d].size; ++i) {
        next.insert(before * shape[d] + i);
      }
    }
    found = std::move(next);
  }
  return found;
}

/// Every element of every receiver's part comes once, from a rank that holds it, and nothing else
/// does.
void check(const ir::Shape& shape, const End& from, const End& to) {
  const PipelineProgram program = program_of(shape, from, to);
  std::map<std::int64_t, std::multiset<std::int64_t>> got;
  std::set<std::pair<std::int64_t, std::int64_t>> pairs;
  std::int64_t receiver = 0;
  for (const Piece& piece : pieces(program, 0)) {
    EXPECT_TRUE(pairs.emplace(piece.sender, piece.receiver).second);
    EXPECT_GE(piece.receiver, receiver) << "by receiver";
    receiver = piece.receiver;
    const std::set<std::int64_t> sent = elements(piece.box, shape);
    EXPECT_FALSE(sent.empty());
    const std::set<std::int64_t> held =
        elements(sharding::part(from.spec, shape, from.mesh, piece.sender), shape);
    EXPECT_TRUE(std::includes(held.begin(), held.end(), sent.begin(), sent.end()));
    got[piece.receiver].insert(sent.begin(), sent.end());
  }
  for (std::int64_t rank = 0; rank < to.mesh.size(); ++rank) {
    const std::set<std::int64_t> wanted =
        elements(sharding::part(to.spec, shape, to.mesh, rank), shape);
    EXPECT_EQ(got[rank], std::multiset<std::int64_t>(wanted.begin(), wanted.end()));
  }
}

End random_end(const ir::Shape& shape, std::mt19937& random) {
  const std::vector<std::vector<std::int64_t>> meshes{
      {}, {2}, {3}, {4}, {2, 2}, {2, 3}, {4, 2}, {2, 2, 2}};
  End end;
  end.mesh = sharding::make_mesh(meshes[random() % meshes.size()]);
  std::vector<ShardingSpec> layouts = sharding::fitting_layouts(shape, end.mesh);
  std::erase_if(layouts, [](const ShardingSpec& spec) { return spec.has_partial(); });
  end.spec = layouts[random() % layouts.size()];
  return end;
}

TEST(PiecesProperty, EveryElementComesOnceFromARankThatHoldsIt) {
  std::mt19937 random(41);
  const std::vector<ir::Shape> shapes{{}, {1}, {7}, {8, 3}, {5, 6}, {4, 3, 5}};
  for (int round = 0; round < 600; ++round) {
    const ir::Shape& shape = shapes[random() % shapes.size()];
    const End from = random_end(shape, random);
    const End to = random_end(shape, random);
    SCOPED_TRACE(sharding::to_string(from.spec, shape.size(), from.mesh) + " on " +
                 cluster::to_string(from.mesh) + " to " +
                 sharding::to_string(to.spec, shape.size(), to.mesh) + " on " +
                 cluster::to_string(to.mesh));
    check(shape, from, to);
  }
}

/// Pieces by sender.
std::vector<std::int64_t> loads(const ir::Shape& shape, const End& from, const End& to) {
  std::vector<std::int64_t> count(static_cast<std::size_t>(from.mesh.size()), 0);
  for (const Piece& piece : pieces(program_of(shape, from, to), 0)) {
    ++count[static_cast<std::size_t>(piece.sender)];
  }
  return count;
}

TEST(Pieces, EqualSendersTakeTurns) {
  const End whole_on_four{sharding::make_mesh({4}), {}};
  const End whole_on_two{sharding::make_mesh({2}), {}};
  ShardingSpec rows;
  rows.shard(0, 0);
  const End cut_on_four{sharding::make_mesh({4}), rows};
  using Loads = std::vector<std::int64_t>;
  EXPECT_EQ(loads({8, 3}, whole_on_two, whole_on_four), (Loads{2, 2}));
  EXPECT_EQ(loads({8, 3}, whole_on_two, cut_on_four), (Loads{2, 2}));
  EXPECT_EQ(loads({8, 3}, whole_on_four, whole_on_two), (Loads{1, 1, 0, 0}));
  EXPECT_EQ(loads({8, 3}, cut_on_four, whole_on_two), (Loads{2, 2, 2, 2}));
  EXPECT_EQ(loads({8, 3}, cut_on_four, cut_on_four), (Loads{1, 1, 1, 1}));
}

// Rows 0-1, 2-3, 4 on three ranks to rows 0-2, 3-4 on two.
TEST(Pieces, OfUnevenCutsByHand) {
  ShardingSpec rows;
  rows.shard(0, 0);
  const std::vector<Piece> found = pieces(
      program_of({5, 2}, {sharding::make_mesh({3}), rows}, {sharding::make_mesh({2}), rows}), 0);
  ASSERT_EQ(found.size(), 4U);
  const std::vector<std::vector<std::int64_t>> expected{// sender, receiver, first row, rows
                                                        {0, 0, 0, 2},
                                                        {1, 0, 2, 1},
                                                        {1, 1, 3, 1},
                                                        {2, 1, 4, 1}};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::vector<std::int64_t> piece{
        found[i].sender, found[i].receiver, found[i].box[0].start, found[i].box[0].size};
    EXPECT_EQ(piece, expected[i]);
    EXPECT_EQ(found[i].box[1].start, 0);
    EXPECT_EQ(found[i].box[1].size, 2);
  }
}

}  // namespace
}  // namespace shardplan::lower
