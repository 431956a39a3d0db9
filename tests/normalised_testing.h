#pragma once

#include <string_view>

namespace shardplan {

/// A small residual net of convolutions and batch normalisation in training: a stem, three blocks,
/// and running statistics that the step writes.
inline constexpr std::string_view kNormalised = R"(graph "normalised" microbatches=1
%0 = parameter "stem.conv.weight" f32[4,3,3,3] trainable
%1 = parameter "stem.norm.weight" f32[4] trainable
%2 = parameter "stem.norm.bias" f32[4] trainable
%3 = buffer "stem.norm.running_mean" f32[4]
%4 = buffer "stem.norm.running_var" f32[4]
%5 = parameter "body.0.conv.weight" f32[4,4,3,3] trainable
%6 = parameter "body.0.norm.weight" f32[4] trainable
%7 = parameter "body.0.norm.bias" f32[4] trainable
%8 = buffer "body.0.norm.running_mean" f32[4]
%9 = buffer "body.0.norm.running_var" f32[4]
%10 = parameter "body.1.conv.weight" f32[4,4,3,3] trainable
%11 = parameter "body.1.norm.weight" f32[4] trainable
%12 = parameter "body.1.norm.bias" f32[4] trainable
%13 = buffer "body.1.norm.running_mean" f32[4]
%14 = buffer "body.1.norm.running_var" f32[4]
%15 = parameter "body.2.conv.weight" f32[4,4,3,3] trainable
%16 = parameter "body.2.norm.weight" f32[4] trainable
%17 = parameter "body.2.norm.bias" f32[4] trainable
%18 = buffer "body.2.norm.running_mean" f32[4]
%19 = buffer "body.2.norm.running_var" f32[4]
%20 = input "x" f32[8,3,6,6]
%21 = convolution(%20, %0) {dilation=[1,1], groups=1, output_padding=[0,0], padding=[1,1], stride=[1,1], transposed=false} : f32[8,4,6,6] layer="stem"
%22 = batch_moments(%21) : f64[3,4] layer="stem"
%23, %24 = batch_statistics(%22) {dtype="f32"} : f32[4], f32[4] layer="stem"
%25 = batch_norm(%21, %23, %24, %1, %2) {bias=true, eps=1e-05, training=true, weight=true} : f32[8,4,6,6] layer="stem"
%26, %27 = batch_running(%22, %3, %4) {momentum=0.1} : f32[4], f32[4] layer="stem"
%28 = tanh(%25) : f32[8,4,6,6] layer="stem"
%29 = convolution(%28, %5) {dilation=[1,1], groups=1, output_padding=[0,0], padding=[1,1], stride=[1,1], transposed=false} : f32[8,4,6,6] layer="body.0"
%30 = batch_moments(%29) : f64[3,4] layer="body.0"
%31, %32 = batch_statistics(%30) {dtype="f32"} : f32[4], f32[4] layer="body.0"
%33 = batch_norm(%29, %31, %32, %6, %7) {bias=true, eps=1e-05, training=true, weight=true} : f32[8,4,6,6] layer="body.0"
%34, %35 = batch_running(%30, %8, %9) {momentum=0.1} : f32[4], f32[4] layer="body.0"
%36 = tanh(%33) : f32[8,4,6,6] layer="body.0"
%37 = add(%36, %28) : f32[8,4,6,6] layer="body.0"
%38 = convolution(%37, %10) {dilation=[1,1], groups=1, output_padding=[0,0], padding=[1,1], stride=[1,1], transposed=false} : f32[8,4,6,6] layer="body.1"
%39 = batch_moments(%38) : f64[3,4] layer="body.1"
%40, %41 = batch_statistics(%39) {dtype="f32"} : f32[4], f32[4] layer="body.1"
%42 = batch_norm(%38, %40, %41, %11, %12) {bias=true, eps=1e-05, training=true, weight=true} : f32[8,4,6,6] layer="body.1"
%43, %44 = batch_running(%39, %13, %14) {momentum=0.1} : f32[4], f32[4] layer="body.1"
%45 = tanh(%42) : f32[8,4,6,6] layer="body.1"
%46 = add(%45, %37) : f32[8,4,6,6] layer="body.1"
%47 = convolution(%46, %15) {dilation=[1,1], groups=1, output_padding=[0,0], padding=[1,1], stride=[1,1], transposed=false} : f32[8,4,6,6] layer="body.2"
%48 = batch_moments(%47) : f64[3,4] layer="body.2"
%49, %50 = batch_statistics(%48) {dtype="f32"} : f32[4], f32[4] layer="body.2"
%51 = batch_norm(%47, %49, %50, %16, %17) {bias=true, eps=1e-05, training=true, weight=true} : f32[8,4,6,6] layer="body.2"
%52, %53 = batch_running(%48, %18, %19) {momentum=0.1} : f32[4], f32[4] layer="body.2"
%54 = tanh(%51) : f32[8,4,6,6] layer="body.2"
%55 = add(%54, %46) : f32[8,4,6,6] layer="body.2"
%56 = mul(%55, %55) : f32[8,4,6,6] layer="head"
%57 = sum(%56) {dims=[0,1,2,3], keepdim=false} : f32[] layer="head"
%58 = scale(%57) {factor=0.001} : f32[] layer="head"
output %58
write %3 <- %26
write %4 <- %27
write %8 <- %34
write %9 <- %35
write %13 <- %43
write %14 <- %44
write %18 <- %52
write %19 <- %53
)";

}  // namespace shardplan
