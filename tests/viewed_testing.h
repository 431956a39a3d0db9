#pragma once

#include <string_view>

namespace shardplan {

/// A small net whose products read its weights and its input through views, in the backward pass,
/// too.
inline constexpr std::string_view kViewed = R"(graph "viewed" microbatches=1
%0 = parameter "h.0.weight" f32[2,4,8] trainable
%1 = parameter "h.1.weight" f32[2,4,8] trainable
%2 = parameter "h.2.weight" f32[2,4,8] trainable
%3 = parameter "h.3.weight" f32[2,4,8] trainable
%4 = input "x" f32[24,2,4]
%5 = reshape(%4) {shape=[24,8]} : f32[24,8] layer="h.0"
%6 = reshape(%0) {shape=[8,8]} : f32[8,8] layer="h.0"
%7 = einsum(%5, %6) {equation="bk,kn->bn"} : f32[24,8] layer="h.0"
%8 = tanh(%7) : f32[24,8] layer="h.0"
%9 = reshape(%1) {shape=[8,8]} : f32[8,8] layer="h.1"
%10 = einsum(%8, %9) {equation="bk,kn->bn"} : f32[24,8] layer="h.1"
%11 = tanh(%10) : f32[24,8] layer="h.1"
%12 = reshape(%2) {shape=[8,8]} : f32[8,8] layer="h.2"
%13 = einsum(%11, %12) {equation="bk,kn->bn"} : f32[24,8] layer="h.2"
%14 = tanh(%13) : f32[24,8] layer="h.2"
%15 = reshape(%3) {shape=[8,8]} : f32[8,8] layer="h.3"
%16 = einsum(%14, %15) {equation="bk,kn->bn"} : f32[24,8] layer="h.3"
%17 = tanh(%16) : f32[24,8] layer="h.3"
%18 = mul(%17, %17) : f32[24,8] layer="head"
%19 = sum(%18) {dims=[0,1], keepdim=false} : f32[] layer="head"
%20 = scale(%19) {factor=0.01} : f32[] layer="head"
output %20
)";

}  // namespace shardplan
