#pragma once

#include <string_view>

namespace shardplan {

/// A small net of every op that slides windows over space, two blocks and a stem.
inline constexpr std::string_view kConvolutional = R"(graph "convolutional" microbatches=1
%0 = parameter "stem.weight" f32[8,3,3,3] trainable
%1 = parameter "body.0.weight" f32[8,8,3,3] trainable
%2 = parameter "body.1.weight" f32[8,1,3,3] trainable
%3 = parameter "head.weight" f32[8,6,2,2] trainable
%4 = input "x" f32[4,3,18,17]
%5 = convolution(%4, %0) {dilation=[1,1], groups=1, output_padding=[0,0], padding=[1,1], stride=[2,2], transposed=false} : f32[4,8,9,9] layer="stem"
%6 = tanh(%5) : f32[4,8,9,9] layer="stem"
%7 = convolution(%6, %1) {dilation=[2,2], groups=1, output_padding=[0,0], padding=[2,2], stride=[1,1], transposed=false} : f32[4,8,9,9] layer="body.0"
%8, %9 = max_pool(%7) {ceil=false, dilation=[1,1], kernel=[3,3], padding=[1,1], stride=[2,2]} : f32[4,8,5,5], i64[4,8,5,5] layer="body.0"
%10 = tanh(%8) : f32[4,8,5,5] layer="body.0"
%11 = convolution(%10, %2) {dilation=[1,1], groups=8, output_padding=[0,0], padding=[1,1], stride=[1,1], transposed=false} : f32[4,8,5,5] layer="body.1"
%12 = add(%10, %11) : f32[4,8,5,5] layer="body.1"
%13 = convolution(%12, %3) {dilation=[1,1], groups=1, output_padding=[0,0], padding=[0,0], stride=[2,2], transposed=true} : f32[4,6,10,10] layer="head"
%14 = avg_pool(%13) {ceil=false, count_padding=false, kernel=[3,3], padding=[1,1], stride=[2,2]} : f32[4,6,5,5] layer="head"
%15 = mul(%14, %14) : f32[4,6,5,5]
%16 = sum(%15) {dims=[0,1,2,3], keepdim=false} : f32[]
output %16
)";

}  // namespace shardplan
