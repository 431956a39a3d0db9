#pragma once

#include <onnx/onnx_pb.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

/// Tiny ONNX models, written node by node.
namespace shardplan::frontends {

class OnnxModel {
 public:
  explicit OnnxModel(std::int64_t opset = 17) {
    proto_.set_ir_version(8);
    auto* const import = proto_.add_opset_import();
    import->set_version(opset);
  }

  ::onnx::ModelProto& proto() { return proto_; }
  ::onnx::GraphProto& graph() { return *proto_.mutable_graph(); }

  /// A dimension of 0 stands for the name "batch".
  void input(const std::string& name,
             const std::vector<std::int64_t>& shape,
             int type = ::onnx::TensorProto::FLOAT) {
    auto* const info = graph().add_input();
    info->set_name(name);
    auto* const tensor = info->mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(type);
    tensor->mutable_shape();
    for (const std::int64_t size : shape) {
      auto* const dim = tensor->mutable_shape()->add_dim();
      if (size == 0) {
        dim->set_dim_param("batch");
      } else {
        dim->set_dim_value(size);
      }
    }
  }
  void output(const std::string& name) { graph().add_output()->set_name(name); }

  ::onnx::NodeProto& node(const std::string& op,
                          const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs) {
    auto* const node = graph().add_node();
    node->set_op_type(op);
    for (const std::string& name : inputs) {
      node->add_input(name);
    }
    for (const std::string& name : outputs) {
      node->add_output(name);
    }
    return *node;
  }
  static void attribute(::onnx::NodeProto& node, const std::string& name, std::int64_t value) {
    auto* const attribute = node.add_attribute();
    attribute->set_name(name);
    attribute->set_type(::onnx::AttributeProto::INT);
    attribute->set_i(value);
  }

  ::onnx::TensorProto& floats(const std::string& name,
                              const std::vector<std::int64_t>& shape,
                              float value) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(::onnx::TensorProto::FLOAT);
    std::int64_t count = 1;
    for (const std::int64_t size : shape) {
      tensor->add_dims(size);
      count *= size;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      tensor->add_float_data(value);
    }
    return *tensor;
  }
  void integers(const std::string& name, const std::vector<std::int64_t>& values) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(::onnx::TensorProto::INT64);
    tensor->add_dims(static_cast<std::int64_t>(values.size()));
    for (const std::int64_t value : values) {
      tensor->add_int64_data(value);
    }
  }

  [[nodiscard]] std::string bytes() const { return proto_.SerializeAsString(); }

 private:
  ::onnx::ModelProto proto_;
};

/// A folder that goes away with the test.
class ModelFolder {
 public:
  ModelFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardplan_onnx_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  std::string write(const std::string& bytes, const std::string& name = "model.onnx") const {
    const std::string file = (path_ / name).string();
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace shardplan::frontends
