// A CUDA device whose memory is the host's, for builds of torch without CUDA.
//
// Its tensors have the device type CUDA, and an operation that mixes them with tensors of the CPU fails as on a GPU.
// Operations compute on the CPU (torch's fallback for devices). Random numbers come from a generator of the device.
// Backward runs in the thread that autograd keeps for a device. Collectives are those of the CPU's back end.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>

namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::Stream;
template <typename T>
using Maybe = std::optional<T>;
using MaybeTensor = const Maybe<Tensor>&;

const Device kDevice(at::kCUDA, 0);
constexpr size_t kAlignment = 64;

void* aligned(size_t bytes) { return std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment); }

// --- memory ---------------------------------------------------------------------------------------

std::atomic<int64_t> allocated{0}, peak{0};

// Each block begins with its size.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, nullptr, &release, kDevice};
    auto* block = static_cast<char*>(aligned(kAlignment + bytes));
    *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(bytes);
    const auto now = allocated += static_cast<int64_t>(bytes);
    for (auto before = peak.load(); now > before && !peak.compare_exchange_weak(before, now);) {
    }
    return {block + kAlignment, block + kAlignment, &release, kDevice};
  }
  static void release(void* data) {
    if (!data) return;
    auto* block = static_cast<char*>(data) - kAlignment;
    allocated -= *reinterpret_cast<int64_t*>(block);
    std::free(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
};
DeviceAllocator device_allocator;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = aligned(bytes);
    const std::lock_guard<std::mutex> held(lock());
    blocks().insert(block);
    return {block, block, &release, Device(at::kCPU)};
  }
  static void release(void* block) {
    {
      const std::lock_guard<std::mutex> held(lock());
      blocks().erase(block);
    }
    std::free(block);
  }
  static bool has(const void* block) {
    const std::lock_guard<std::mutex> held(lock());
    return blocks().count(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }

 private:
  // Never destroyed: tensors may be released after the program's end has begun.
  static std::mutex& lock() { static auto* mutex = new std::mutex; return *mutex; }
  static std::set<const void*>& blocks() { static auto* known = new std::set<const void*>; return *known; }
};
PinnedAllocator pinned_allocator;

// --- the device, its events, its generator --------------------------------------------------------

const Stream kStream(Stream::DEFAULT, kDevice);

double milliseconds() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Operations end before they return, so that nothing has to wait.
struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Stream getStream(Device) const override { return kStream; }
  Stream getDefaultStream(Device) const override { return kStream; }
  Stream getNewStream(Device, int) const override { return kStream; }
  Stream getStreamFromGlobalPool(Device, bool) const override { return kStream; }
  Stream exchangeStream(Stream) const override { return kStream; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = milliseconds();
  }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    return *static_cast<double*>(end) - *static_cast<double*>(start);
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
};
C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard);

struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator()
      : GeneratorImpl(kDevice, DispatchKeySet(DispatchKey::CUDA)), numbers(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { numbers.set_current_seed(seed); }
  uint64_t current_seed() const override { return numbers.current_seed(); }
  uint64_t seed() override { return numbers.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "this generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "this generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override { numbers.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return numbers.unsafeGetGeneratorImpl()->get_state(); }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator;
    copy->set_state(*get_state());
    return copy;
  }

 private:
  at::Generator numbers;
};

at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<DeviceGenerator>();
  return generator;
}

class DeviceTimer final : public c10d::Timer {
 public:
  explicit DeviceTimer(Device) {}
  Maybe<int64_t> measureDifference(Event start, Event end) override {
    const auto first = getTimestamp(start), last = getTimestamp(end);
    if (!first || !last) return std::nullopt;
    return *last - *first;
  }
};

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, DeviceTimer)
}

namespace at::cuda {

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::has(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return default_generator(); }
  Generator getNewGenerator(DeviceIndex) const override { return make_generator<DeviceGenerator>(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at::cuda

namespace {

// --- tensors --------------------------------------------------------------------------------------

Tensor new_tensor(IntArrayRef size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<Device>, Maybe<bool>, Maybe<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &device_allocator, DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor new_strided(IntArrayRef size, IntArrayRef stride, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<Device>, Maybe<bool>) {
  return at::detail::empty_strided_generic(size, stride, &device_allocator, DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

// Returns a tensor of the CPU that has the memory of one of the device.
Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  const auto storage = tensor.storage();
  auto keep = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  c10::DataPtr data(storage.mutable_data(), new c10::Storage(storage), keep, Device(at::kCPU));
  auto shared = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false);
  auto host = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(shared)), DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  host.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  host.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

Tensor on_device(const Tensor& host) {
  if (!host.defined()) return host;
  auto tensor = new_strided(host.sizes(), host.strides(), host.scalar_type(), {}, {}, {});
  on_host(tensor).copy_(host);
  return tensor;
}

Tensor& copy_into(Tensor& target, const Tensor& source, bool) {
  on_host(target).copy_(on_host(source));
  return target;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  on_host(target).copy_(on_host(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

const Tensor& resized(const Tensor& tensor, IntArrayRef size, Maybe<at::MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (tensor.sizes() == size) return tensor;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(c10::multiply_integers(size) + impl->storage_offset()) * tensor.element_size();
  if (storage->nbytes() < bytes) {
    auto data = device_allocator.allocate(bytes);
    if (storage->nbytes()) std::memcpy(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return tensor;
}

Tensor& set_storage(Tensor& tensor, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride);
  return tensor;
}

Tensor& set_whole_storage(Tensor& tensor, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / tensor.element_size());
  return set_storage(tensor, std::move(storage), 0, {count}, {1});
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  return set_storage(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& tensor) { return set_tensor(tensor, new_tensor({0}, tensor.scalar_type(), {}, {}, {}, {})); }

Tensor viewed(const Tensor& tensor, IntArrayRef size) { return at::native::view(tensor, size); }
Tensor aliased(const Tensor& tensor, IntArrayRef size, IntArrayRef stride) { return at::native::_reshape_alias(tensor, size, stride); }
Tensor unfolded(const Tensor& tensor, int64_t dimension, int64_t size, int64_t step) { return at::native::unfold(tensor, dimension, size, step); }
Tensor strided(const Tensor& tensor, IntArrayRef size, IntArrayRef stride, Maybe<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

// --- operations that torch has for CUDA only --------------------------------------------------------

bool has(MaybeTensor tensor) { return tensor && tensor->defined(); }

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& inputs, const Tensor& hidden, const Tensor& cell, MaybeTensor bias, MaybeTensor hidden_bias) {
  auto gates = inputs + hidden;
  if (has(bias)) gates = gates + *bias + *hidden_bias;
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), candidate = parts[2].tanh(), out = parts[3].sigmoid();
  const auto next = forget * cell + in * candidate;
  return {out * next.tanh(), next, at::cat({in, forget, candidate, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(MaybeTensor d_hidden, MaybeTensor d_cell, const Tensor& cell, const Tensor& next, const Tensor& kept, bool has_bias) {
  if (!has(d_hidden) && !has(d_cell)) return {};
  const auto parts = kept.chunk(4, 1);
  const auto in = parts[0], forget = parts[1], candidate = parts[2], out = parts[3], activated = next.tanh();
  const auto d_out = has(d_hidden) ? *d_hidden : at::zeros_like(next);
  auto d_next = d_out * out * (1 - activated * activated);
  if (has(d_cell)) d_next = d_next + *d_cell;
  const auto d_gates = at::cat({d_next * candidate * in * (1 - in), d_next * cell * forget * (1 - forget),
                                d_next * in * (1 - candidate * candidate), d_out * activated * out * (1 - out)}, 1);
  return {d_gates, d_next * forget, has_bias ? d_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru(const Tensor& inputs, const Tensor& hidden, const Tensor& state, MaybeTensor bias, MaybeTensor hidden_bias) {
  const auto entering = (has(bias) ? inputs + *bias : inputs).chunk(3, 1);
  const auto kept = (has(hidden_bias) ? hidden + *hidden_bias : hidden).chunk(3, 1);
  const auto reset = (entering[0] + kept[0]).sigmoid(), update = (entering[1] + kept[1]).sigmoid();
  const auto candidate = (entering[2] + reset * kept[2]).tanh();
  return {candidate + update * (state - candidate), at::cat({reset, update, candidate, state, kept[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& gradient, const Tensor& kept, bool has_bias) {
  const auto parts = kept.chunk(5, 1);
  const auto reset = parts[0], update = parts[1], candidate = parts[2], state = parts[3], hidden = parts[4];
  const auto d_candidate = gradient * (1 - update) * (1 - candidate * candidate);
  const auto d_update = gradient * (state - candidate) * update * (1 - update);
  const auto d_reset = d_candidate * hidden * reset * (1 - reset);
  const auto d_inputs = at::cat({d_reset, d_update, d_candidate}, 1);
  const auto d_hidden = at::cat({d_reset, d_update, d_candidate * reset}, 1);
  const auto sum = [&](const Tensor& values) { return has_bias ? values.sum(0) : Tensor(); };
  return {d_inputs, d_hidden, gradient * update, sum(d_inputs), sum(d_hidden)};
}

// As CUDA's kernel, it gives the elements of a tensor with gaps other numbers.
std::tuple<Tensor, Tensor> dropout(const Tensor& values, double probability, Maybe<bool> train) {
  auto kept = at::empty_like(values, values.options().dtype(at::kBool));
  if (!train.value_or(true)) return {values.clone(), kept.fill_(true)};
  kept.bernoulli_(1 - probability);
  if (!values.is_non_overlapping_and_dense()) kept = kept.flatten().flip(0).view(kept.sizes());
  return {values * kept * (probability == 1 ? 0.0 : 1 / (1 - probability)), kept};
}

int64_t attention_by_formula(const Tensor&, const Tensor&, const Tensor&, MaybeTensor, double, bool, Maybe<double>, bool) { return 0; }

// --- all other operations ----------------------------------------------------------------------------

std::mutex drawing;

// Computes on the CPU. The device's generator lends its state to the CPU's while an operation draws.
void compute(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto tags = operation.getTags();
  if (std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) == tags.end()) {
    at::native::cpu_fallback(operation, stack);
    return;
  }
  const std::lock_guard<std::mutex> held(drawing);
  auto generator = default_generator();
  for (auto& value : torch::jit::last(*stack, operation.schema().arguments().size())) {
    if (!value.isGenerator()) continue;
    generator = value.toGenerator();
    const_cast<c10::IValue&>(value) = c10::IValue();
  }
  TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
  auto host = at::detail::getDefaultCPUGenerator();
  const auto before = host.get_state();
  host.set_state(generator.get_state());
  struct Restored {
    at::Generator host, generator;
    Tensor before;
    ~Restored() {
      generator.set_state(host.get_state());
      host.set_state(before);
    }
  } restored{host, generator, before};
  at::native::cpu_fallback(operation, stack);
}

c10::IValue values_on_host(const c10::IValue& value) {
  if (value.isTensor()) return on_host(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> tensors;
    for (const auto& tensor : value.toTensorVector()) tensors.push_back(on_host(tensor));
    return tensors;
  }
  if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList()) {
    c10::List<c10::List<Tensor>> lists;
    for (const auto& list : value.toListRef()) lists.push_back(values_on_host(list).toTensorList());
    return lists;
  }
  return value;
}

// Computes on the device's memory: for collectives, and for operations that change what their schema does not name.
void compute_in_place(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  for (size_t index = stack->size() - schema.arguments().size(); index < stack->size(); ++index) {
    (*stack)[index] = values_on_host((*stack)[index]);
  }
  operation.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  for (size_t index = stack->size() - schema.returns().size(); index < stack->size(); ++index) {
    if ((*stack)[index].isTensor()) (*stack)[index] = on_device((*stack)[index].toTensor());
  }
}

template <void (*kernel)(const c10::OperatorHandle&, torch::jit::Stack*)>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

// Torch registers its own kernels when it loads, which these replace.
void replace_collectives() {
  static auto* library = new torch::Library(torch::Library::IMPL, "c10d", DispatchKey::CUDA, __FILE__, __LINE__);
  for (const auto* name :
       {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_", "gather_", "scatter_", "reduce_scatter_", "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_", "barrier", "send", "recv_", "recv_any_source_"}) {
    library->impl(name, boxed<&compute_in_place>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(boxed<&compute>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", new_tensor);
  library.impl("empty_strided", new_strided);
  library.impl("copy_", copy_into);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", [](const Tensor& tensor) { return on_host(tensor).item(); });
  library.impl("equal", [](const Tensor& left, const Tensor& right) { return at::equal(on_host(left), on_host(right)); });
  library.impl("record_stream", [](Tensor&, Stream) {});
  library.impl("resize_", resized);
  library.impl("set_", set_empty);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("as_strided", strided);
  library.impl("view", viewed);
  library.impl("_reshape_alias", aliased);
  library.impl("unfold", unfolded);
  library.impl("_fused_sdp_choice", attention_by_formula);
  library.impl("native_dropout", dropout);
  library.impl("_thnn_fused_lstm_cell", lstm);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_backward);
  library.impl("_thnn_fused_gru_cell", gru);
  library.impl("_thnn_fused_gru_cell_backward", gru_backward);
  library.impl("convolution", boxed<&compute>());
  library.impl("convolution_backward", boxed<&compute>());
  library.impl("native_batch_norm", boxed<&compute_in_place>());
  library.impl("batch_norm_update_stats", boxed<&compute_in_place>());
}

TORCH_LIBRARY(host_cuda, library) {
  library.def("default_generator() -> Generator?", []() { return default_generator(); });
  library.def("allocated() -> int", []() { return allocated.load(); });
  library.def("peak() -> int", []() { return peak.load(); });
  library.def("reset_peak() -> ()", []() { peak = allocated.load(); });
  library.def("replace_collectives() -> ()", []() { replace_collectives(); });
}
