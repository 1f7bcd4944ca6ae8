-- lib/remember: keep the answer to a request, so that a copy of it changes nothing more.
-- defines  remember(memory_key, answer, ttl_ms): returns the answer
local function remember(memory_key, answer, ttl_ms)
  redis.call('set', memory_key, answer, 'px', ttl_ms)
  return answer
end
